"""Steps alike, taken as one."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from engines.calibration.samples import Region, StepSample
from engines.model.cost_model import StepCoefficients, StepWork


class StepGroup(NamedTuple):
    """Steps of one point that computed the same, or nearly so.

    Args:
        point: Where they were seen.
        region: Their kind.
        work: What each computed; of runs of several steps the sum.
        seconds: How long it took.
        spread: Half the distance between the 16th and the 84th percentile of their durations, as a fraction.
        number: How many.
        num_steps: Steps in each of them (:mod:`engines.calibration.samples` on runs of steps).
    """

    point: str
    region: Region
    work: StepWork
    seconds: float
    spread: float
    number: int
    num_steps: int = 1

    def modelled_s(self, coefficients: StepCoefficients) -> float:
        """What the model says of it."""
        return coefficients.seconds(self.work) + (self.num_steps - 1) * coefficients.step_s


def group(samples: Iterable[StepSample], at_least: int = 1, quantile: float = 0.5) -> list[StepGroup]:
    """One duration for steps alike, of which there were at least so many: the median, or another quantile.

    One run of a point differs from the next by what the machine did beside it; the median over runs does not.
    """
    alike: dict[tuple[str, Region, int, int, int, int], list[StepSample]] = defaultdict(list)
    for each in samples:
        work = each.work
        key = (each.point, each.region, each.num_steps, work.new_tokens, work.sequences, work.attention_pairs)
        alike[key].append(each)
    return [_group(members, quantile) for members in alike.values() if len(members) >= at_least]


def _group(members: Sequence[StepSample], quantile: float) -> StepGroup:
    seconds = sorted(each.seconds for each in members)
    median = statistics.median(seconds)
    last = len(seconds) - 1
    spread = (seconds[round(0.84 * last)] - seconds[round(0.16 * last)]) / 2 / median
    context_tokens = round(statistics.median(each.work.context_tokens for each in members))
    first = members[0]
    work = first.work._replace(context_tokens=context_tokens)
    taken_s = float(np.quantile(seconds, quantile))
    return StepGroup(first.point, first.region, work, taken_s, spread, len(members), first.num_steps)

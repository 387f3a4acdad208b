"""Steps alike, taken as one."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from engines.calibration.samples import Region, StepSample
from engines.model.cost_model import StepWork


class StepGroup(NamedTuple):
    """Steps of one point that computed the same, or nearly so.

    Args:
        point: Where they were seen.
        region: Their kind.
        work: What each computed.
        seconds: How long it took.
        spread: Half the distance between the 16th and the 84th percentile of their durations, as a fraction.
        number: How many.
    """

    point: str
    region: Region
    work: StepWork
    seconds: float
    spread: float
    number: int


def group(samples: Iterable[StepSample], at_least: int = 1, quantile: float = 0.5) -> list[StepGroup]:
    """One duration for steps alike, of which there were at least so many: the median, or another quantile.

    One run of a point differs from the next by what the machine did beside it; the median over runs does not.
    """
    alike: dict[tuple[str, Region, int, int, int], list[StepSample]] = defaultdict(list)
    for each in samples:
        work = each.work
        alike[each.point, each.region, work.new_tokens, work.sequences, work.attention_pairs].append(each)
    return [_group(members, quantile) for members in alike.values() if len(members) >= at_least]


def _group(members: Sequence[StepSample], quantile: float) -> StepGroup:
    seconds = sorted(each.seconds for each in members)
    median = statistics.median(seconds)
    last = len(seconds) - 1
    spread = (seconds[round(0.84 * last)] - seconds[round(0.16 * last)]) / 2 / median
    context_tokens = round(statistics.median(each.work.context_tokens for each in members))
    first = members[0]
    work = first.work._replace(context_tokens=context_tokens)
    return StepGroup(first.point, first.region, work, float(np.quantile(seconds, quantile)), spread, len(members))

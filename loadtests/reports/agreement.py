"""Whether simulated and live runs of one plan agree."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtests.reports.runs import Chapter, Series
from loadtests.results.metrics import ALL, METRICS, quantile_name
from loadtests.results.run_folder import SIMULATOR

GOAL = 0.15
"""How far a deployment may be from the simulator, as a fraction of the simulator's percentile."""


@dataclass(frozen=True)
class Agreement:
    """A percentile of the time to first token, in the simulator and over HTTP.

    Args:
        live: The series over HTTP.
        simulated: The simulator's.
        group: A traffic class, or ``ALL``.
        quantile: Which percentile, 0 to 1.
        live_s: Over HTTP.
        simulated_s: In the simulator.
    """

    live: Series
    simulated: Series
    group: str
    quantile: float
    live_s: float
    simulated_s: float

    @property
    def ratio(self) -> float:
        """Live / simulated."""
        return agreement_ratio(self.live_s, self.simulated_s)

    @property
    def is_within_goal(self) -> bool:
        """Whether they are as close as is wanted."""
        return is_within_goal(self.ratio)


def agreement_ratio(live_s: float, simulated_s: float) -> float:
    """How far a deployment is from the simulator: live / simulated; NaN where there is no such ratio."""
    return live_s / simulated_s if simulated_s > 0 else math.nan


def is_within_goal(ratio: float) -> bool:
    """Whether a deployment is as close to the simulator as is wanted; NaN is not."""
    return abs(ratio - 1) <= GOAL


def agreements(chapter: Chapter) -> Iterator[Agreement]:
    """The simulator beside every deployment that ran the same variant at the same rate."""
    simulated = [each for each in chapter.series if each.record.driver == SIMULATOR]
    for live in chapter.series:
        for other in simulated:
            if live.record.driver != SIMULATOR and _settings(live) == _settings(other):
                for group in (ALL, *live.record.traffic_classes):
                    for quantile in (0.5, 0.99):
                        yield _agreement(live, other, group, quantile)


def _settings(series: Series) -> tuple[str, float]:
    return series.record.variant, series.record.rate_fraction


def _agreement(live: Series, simulated: Series, group: str, quantile: float) -> Agreement:
    least = METRICS[quantile_name("ttft", quantile)].min_samples
    values = [series.latencies_s("ttft", group) for series in (live, simulated)]
    found = [float(np.quantile(each, quantile)) if len(each) >= least else math.nan for each in values]
    return Agreement(
        live=live, simulated=simulated, group=group, quantile=quantile, live_s=found[0], simulated_s=found[1]
    )

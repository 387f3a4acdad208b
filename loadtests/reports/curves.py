"""The numbers behind a report's charts: where a curve goes, what happened in each second, where the time went."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loadtests.reports.runs import Chapter, Series
from loadtests.results.analysis import Floats
from loadtests.results.metrics import ALL, SAMPLES_BEYOND_A_QUANTILE

SLOW_FRACTION = 0.01
"""The slowest requests by time to first token, whose budget stands beside the mean's."""
MOST_BINS = 120
LEAST_QUANTILE, MOST_QUANTILE = 0.1, 0.999
"""From where to where curves go."""
_POINTS = 160


@dataclass(frozen=True)
class Curve:
    """A line to draw.

    Args:
        x: In the unit of the chart's axis.
        y: The same; NaN where the line is interrupted.
    """

    x: Floats
    y: Floats


@dataclass(frozen=True)
class LatencyShare:
    """One stage of the latency budget, as the mean over requests.

    Args:
        name: What the service calls it.
        mean_s: Over all.
        slow_s: Over the slowest hundredth, by time to first token.
    """

    name: str
    mean_s: float
    slow_s: float


def _quotable(num_samples: int) -> float:
    """The highest quantile that has enough samples beyond it; below 0 where there are too few for any."""
    return 1 - SAMPLES_BEYOND_A_QUANTILE / num_samples if num_samples else -math.inf


def quantile(values: Floats, at: float) -> float:
    """A quantile of sorted values, NaN where fewer samples lie beyond it than it takes."""
    return float(np.quantile(values, at)) if at <= _quotable(len(values)) + 1e-12 else math.nan


def tail_curve(values: Floats) -> Curve:
    """Quantiles of sorted values, closer together towards the tail; it ends where too few samples lie beyond."""
    most = min(_quotable(len(values)), MOST_QUANTILE)
    if most <= LEAST_QUANTILE:
        return Curve(x=np.empty(0), y=np.empty(0))
    quantiles: Floats = 1 - np.geomspace(1 - LEAST_QUANTILE, 1 - most, _POINTS, dtype=np.float64)
    return Curve(x=np.asarray(np.quantile(values, quantiles), dtype=np.float64), y=quantiles)


def latency_budget(series: Series) -> list[LatencyShare]:
    """Where the time of completed requests went, by the service's own account; empty where it gave none."""
    ttfts_s: list[float] = []
    budgets: list[Mapping[str, float]] = []
    for run in series.runs.values():
        chosen = (
            np.flatnonzero(run.rows.are_logical_requests & ~np.isnan(run.rows.e2e_s))
            if run.details
            else np.empty(0, int)
        )
        for index in chosen.tolist():
            if run.details[index].stages_s:
                budgets.append(run.details[index].stages_s)
                ttfts_s.append(float(run.rows.ttft_s[index]))
    if not budgets:
        return []
    names = list(dict.fromkeys(name for budget in budgets for name in budget))
    amounts = np.array([[budget.get(name, 0.0) for name in names] for budget in budgets])
    slowest = np.argsort(ttfts_s)[-max(1, round(SLOW_FRACTION * len(budgets))) :]
    return [
        LatencyShare(name=name, mean_s=float(mean), slow_s=float(slow))
        for name, mean, slow in zip(names, amounts.mean(axis=0), amounts[slowest].mean(axis=0), strict=True)
    ]


def goodput_curves(chapter: Chapter) -> dict[str, list[Series]]:
    """Series that differ in nothing but the rate, in order of the rate; only where some do."""
    together: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for series in chapter.series:
        together[series.record.driver, series.record.variant, series.record.target].append(series)
    return {
        f"{variant}, {driver}": sorted(of_key, key=lambda each: each.mean(ALL, "offered_rps"))
        for (driver, variant, _), of_key in together.items()
        if len({series.record.rate_fraction for series in of_key}) > 1
        and not any(math.isnan(series.mean(ALL, "offered_rps")) for series in of_key)
    }

"""The numbers behind a report's charts: where a curve goes, what happened in each second, where the time went."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.sim.run_table import OUTCOMES
from loadtests.reports.runs import Chapter, LoadedRun, Series
from loadtests.results.analysis import ABANDONED, Floats, Mask
from loadtests.results.metrics import ALL, SAMPLES_BEYOND_A_QUANTILE

REFUSED = OUTCOMES.index("refused")
SLOW_FRACTION = 0.01
"""The slowest requests by time to first token, whose budget stands beside the mean's."""
MOST_BINS = 120
BIN_LENGTHS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
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
class RunTimeline:
    """What happened in a series, per bin of time, as the mean of its runs.

    Args:
        starts_s: When each bin begins.
        width_s: How long each is.
        counts: By name: ``wanted`` intents by when they were wanted, ``served`` ones (within the SLO) by when they
            ended, ``refused`` tries by when they were. Per bin.
        waiting: Requests without a first token, at the middle of each bin.
        gauges: What the deployment said of itself, by name: the mean of what it said in the bin; NaN where nothing.
    """

    starts_s: Floats
    width_s: float
    counts: Mapping[str, Floats]
    waiting: Floats
    gauges: Mapping[str, Floats]


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


def quotable(num_samples: int) -> float:
    """The highest quantile that has enough samples beyond it; below 0 where there are too few for any."""
    return 1 - SAMPLES_BEYOND_A_QUANTILE / num_samples if num_samples else -math.inf


def quantile(values: Floats, at: float) -> float:
    """A quantile of sorted values, NaN where fewer samples lie beyond it than it takes."""
    return float(np.quantile(values, at)) if at <= quotable(len(values)) + 1e-12 else math.nan


def tail_curve(values: Floats) -> Curve:
    """Quantiles of sorted values, closer together towards the tail; it ends where too few samples lie beyond."""
    most = min(quotable(len(values)), MOST_QUANTILE)
    if most <= LEAST_QUANTILE:
        return Curve(x=np.empty(0), y=np.empty(0))
    quantiles: Floats = 1 - np.geomspace(1 - LEAST_QUANTILE, 1 - most, _POINTS, dtype=np.float64)
    return Curve(x=np.asarray(np.quantile(values, quantiles), dtype=np.float64), y=quantiles)


def bin_width_s(chapter: Chapter) -> float:
    """Seconds in a bin of the chapter's timelines: no more than ``MOST_BINS`` of them."""
    ended_s = max((_last_s(run) for run in chapter.runs), default=0.0)
    return next((each for each in BIN_LENGTHS_S if ended_s / each <= MOST_BINS), ended_s / MOST_BINS)


def timeline(series: Series, width_s: float) -> RunTimeline:
    """What happened in a series, second by second."""
    runs = list(series.runs.values())
    num_bins = 1 + max(int(_last_s(run) / width_s) for run in runs)
    starts_s: Floats = np.arange(num_bins, dtype=np.float64) * width_s
    of_each = [_counts(run, num_bins, width_s) for run in runs]
    counts = {name: np.mean([each[name] for each in of_each], axis=0) for name in of_each[0]}
    waiting = np.mean([_waiting(run, starts_s + width_s / 2) for run in runs], axis=0)
    return RunTimeline(
        starts_s=starts_s, width_s=width_s, counts=counts, waiting=waiting, gauges=_gauges(runs, num_bins, width_s)
    )


def _last_s(run: LoadedRun) -> float:
    moments = run.record.moments
    return max(run.saved.table.duration_s, run.record.duration_s, moments[-1].at_s if moments else 0.0)


def _counts(run: LoadedRun, num_bins: int, width_s: float) -> dict[str, Floats]:
    table, rows = run.saved.table, run.rows
    refused: Mask = table.outcome == REFUSED
    which = {
        "wanted": table.scheduled_s[table.is_last],
        "served": table.end_s[table.is_last & rows.is_good],
        "refused": table.end_s[refused],
    }
    return {name: _histogram(times_s, num_bins, width_s) for name, times_s in which.items()}


def _histogram(times_s: Floats, num_bins: int, width_s: float) -> Floats:
    bins = np.clip((times_s / width_s).astype(np.int64), 0, num_bins - 1)
    return np.bincount(bins, minlength=num_bins).astype(np.float64)


def _waiting(run: LoadedRun, at_s: Floats) -> Floats:
    """Requests that are sent and have neither a first token nor an end."""
    table = run.saved.table
    sent: Mask = table.outcome != ABANDONED
    left_s = np.sort(np.where(np.isnan(table.first_token_s), table.end_s, table.first_token_s)[sent])
    came_s = np.sort(table.sent_s[sent])
    waiting = np.searchsorted(came_s, at_s, side="right") - np.searchsorted(left_s, at_s, side="right")
    return waiting.astype(np.float64)


def _gauges(runs: Sequence[LoadedRun], num_bins: int, width_s: float) -> dict[str, Floats]:
    sums: dict[str, Floats] = defaultdict(lambda: np.zeros(num_bins))
    seen: dict[str, Floats] = defaultdict(lambda: np.zeros(num_bins))
    for run in runs:
        for moment in run.record.moments:
            index = min(max(int(moment.at_s / width_s), 0), num_bins - 1)
            for name, value in moment.gauges.items():
                sums[name][index] += value
                seen[name][index] += 1
    return {
        name: np.divide(sums[name], seen[name], out=np.full(num_bins, np.nan), where=seen[name] > 0) for name in sums
    }


def latency_budget(series: Series) -> list[LatencyShare]:
    """Where the time of completed requests went, by the service's own account; empty where it gave none."""
    ttfts_s: list[float] = []
    budgets: list[Mapping[str, float]] = []
    for run in series.runs.values():
        chosen = np.flatnonzero(run.rows.are_intents & ~np.isnan(run.rows.e2e_s)) if run.details else np.empty(0, int)
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

"""Which series of a chapter are compared with which, and how sure the difference is.

Series that share seeds are compared by seed. With one run each there is nothing to pair, and requests are resampled in
the place of seeds; requests wait in the same queues and are not independent, so that interval is narrower than the
truth, and the report says so.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from loadtests.reports.runs import Chapter, Series
from loadtests.results.analysis import Floats
from loadtests.results.comparison import (
    CONFIDENCE,
    NUM_RESAMPLES,
    Comparison,
    IntervalKind,
    SeedEstimate,
    compare,
    conclude,
)
from loadtests.results.metrics import ALL, METRICS
from loadtests.results.run_folder import SIMULATOR
from loadtests.scenario.scenario import POLICY

COMPARED = ("goodput_fraction", "ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "sends_per_request")
"""Metrics of everything together."""
COMPARED_BY_CLASS = ("goodput_fraction", "ttft_p99_s")
RESAMPLED = ("goodput_fraction", "ttft_p50_s", "ttft_p99_s")
"""What can be resampled by request."""
_TAIL = (1 - CONFIDENCE) / 2


class ResampledUnit(StrEnum):
    """What was resampled."""

    SEED = "seed"
    REQUEST = "request"


@dataclass(frozen=True)
class Compared:
    """One metric of two series.

    Args:
        ours: The series in question.
        theirs: What it is compared with.
        group: A traffic class, or ``ALL``.
        metric: A name in ``METRICS``.
        unit: What was resampled.
        result: The comparison; ``theirs`` is its baseline.
    """

    ours: Series
    theirs: Series
    group: str
    metric: str
    unit: ResampledUnit
    result: Comparison


def comparisons(chapter: Chapter) -> Iterator[Compared]:
    """Every comparison of the chapter; percentiles of too few samples are left out."""
    for ours, theirs in _pairs(chapter):
        for group, metric in _asked(chapter):
            found = compared(ours, theirs, group, metric)
            if found is not None:
                yield found


def _pairs(chapter: Chapter) -> Iterator[tuple[Series, Series]]:
    """The policy with every baseline on the same fleet, and each later series of a kind with the first."""
    by_place: dict[tuple[str, str, float], list[Series]] = defaultdict(list)
    by_kind: dict[tuple[str, str, float], list[Series]] = defaultdict(list)
    for series in chapter.series:
        record = series.record
        by_place[record.driver, _place(series), record.rate_fraction].append(series)
        by_kind[record.driver, record.variant, record.rate_fraction].append(series)
    for together in by_place.values():
        policies = [series for series in together if series.record.variant == POLICY]
        yield from ((policies[0], other) for other in together if policies and other.record.variant != POLICY)
    for first, *others in by_kind.values():
        yield from ((other, first) for other in others)


def _place(series: Series) -> str:
    """Where it ran; a scenario's baselines may have pools of their own in the simulator."""
    return "" if series.record.driver == SIMULATOR else series.record.target


def _asked(chapter: Chapter) -> Iterator[tuple[str, str]]:
    yield from ((ALL, metric) for metric in COMPARED)
    classes = {name for run in chapter.runs for name in run.record.traffic_classes}
    if len(classes) > 1:
        yield from ((name, metric) for name in sorted(classes) for metric in COMPARED_BY_CLASS)


def compared(ours: Series, theirs: Series, group: str, metric: str) -> Compared | None:
    """Compares one metric; ``None`` where a run has too few samples of it, or it can't be resampled.

    Args:
        ours: The series in question.
        theirs: What it is compared with.
        group: A traffic class, or ``ALL``.
        metric: A name in ``METRICS``.
    """
    seeds = sorted(ours.runs.keys() & theirs.runs.keys())
    if len(seeds) > 1:
        sides = [_values(series, seeds, group, metric) for series in (ours, theirs)]
        if any(len(values) < len(seeds) for values in sides):
            return None
        result = compare(sides[0], sides[1], METRICS[metric].better)
        return Compared(ours, theirs, group, metric, ResampledUnit.SEED, result)
    if metric not in RESAMPLED:
        return None
    draws = [_draws(series, group, metric, number) for number, series in enumerate((ours, theirs))]
    if any(math.isnan(value) for value, _ in draws):
        return None
    return Compared(ours, theirs, group, metric, ResampledUnit.REQUEST, _resampled(draws[0], draws[1], metric))


def _values(series: Series, seeds: Sequence[int], group: str, metric: str) -> list[float]:
    only = Series(number=series.number, label=series.label, runs={seed: series.runs[seed] for seed in seeds})
    return [metric_value.value for metric_value in only.metrics(group, metric)]


def _draws(series: Series, group: str, metric: str, number: int) -> tuple[float, Floats]:
    """The metric, and what it comes to in resamples of the requests; NaN where there are too few."""
    rng = np.random.default_rng(number)
    if metric == "goodput_fraction":
        good = np.concatenate(
            [run.rows.is_good[run.rows.are_logical_requests & run.members(group)] for run in series.runs.values()]
        )
        if not len(good):
            return math.nan, np.empty(0)
        value = float(good.mean())
        return value, rng.binomial(len(good), value, NUM_RESAMPLES) / len(good)
    at = METRICS[metric].quantile or 0.5
    values = series.latencies_s("ttft", group)
    if len(values) < METRICS[metric].min_samples:
        return math.nan, np.empty(0)
    return float(np.quantile(values, at)), resampled_quantiles(values, at, rng)


def resampled_quantiles(values: Floats, at: float, rng: np.random.Generator) -> Floats:
    """A quantile of resamples of sorted values, without making them.

    The k-th smallest of n values drawn with replacement is the one whose rank the k-th smallest of n uniform numbers
    points at, and that has a beta distribution.
    """
    num = len(values)
    rank = min(max(math.ceil(at * num), 1), num)
    points = np.ceil(num * rng.beta(rank, num - rank + 1, NUM_RESAMPLES)).astype(np.int64)
    found: Floats = values[np.clip(points, 1, num) - 1]
    return found


def _resampled(ours: tuple[float, Floats], theirs: tuple[float, Floats], metric: str) -> Comparison:
    (value, draws), (other, other_draws) = ours, theirs
    difference = _interval(value - other, draws - other_draws)
    has_ratio = other > 0 and bool((other_draws > 0).all())
    none = SeedEstimate(value=math.nan, low=math.nan, high=math.nan, kind=IntervalKind.NONE)
    return Comparison(
        policy=value,
        baseline=other,
        ratio=_interval(value / other, draws / other_draws) if has_ratio else none,
        difference=difference,
        win_rate=math.nan,
        change=conclude(difference, METRICS[metric].better),
    )


def _interval(value: float, draws: Floats) -> SeedEstimate:
    low, high = np.quantile(draws, (_TAIL, 1 - _TAIL))
    return SeedEstimate(value=value, low=float(low), high=float(high), kind=IntervalKind.BOOTSTRAP_95)

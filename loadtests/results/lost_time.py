"""What requests lose their time to, beyond what they would take on an idle fleet."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loadtests.results.metrics import MetricValue, RunMetrics
from policies.capacity.bounds import Bound, lost, what_binds

LOST_FRACTION = "lost_fraction"
LOSSES: Sequence[Bound] = tuple(bound for bound in Bound if bound is not Bound.ENGINE)


def lost_to(bound: Bound) -> str:
    """The metric that says how much of what is lost is lost there."""
    return f"lost_to_{bound.value}_fraction"


def lost_metrics(spent_s: Mapping[Bound, float], num_requests: int) -> dict[str, MetricValue]:
    """How much requests lose, and to what.

    Args:
        spent_s: What they spent their time on, as :func:`policies.capacity.bounds.what_binds` takes it; all zeros:
            nobody knows.
        num_requests: How many.
    """
    return {name: MetricValue(value=value, samples=num_requests) for name, value in _fractions(spent_s)}


def _fractions(spent_s: Mapping[Bound, float]) -> Iterator[tuple[str, float]]:
    alone_s = spent_s.get(Bound.ENGINE, 0.0)
    lost_s = lost(spent_s)
    total_s = sum(lost_s.values())
    yield LOST_FRACTION, total_s / alone_s if alone_s else math.nan
    for bound in LOSSES:
        yield lost_to(bound), lost_s.get(bound, 0.0) / total_s if total_s else math.nan


def by_bound(spent_s: NDArray[np.float32]) -> dict[Bound, float]:
    """The sums of a table's column ``spent_s``, a row for each request."""
    sums = spent_s.sum(axis=0, dtype=np.float64)
    return dict(zip(Bound, map(float, sums), strict=True))


def binding(runs: Iterable[RunMetrics], groups: Sequence[str]) -> str:
    """What binds by the mean of several runs, in words; empty where nobody knows.

    Args:
        runs: Metrics of each seed's run.
        groups: The requests that the verdict is on, and those that have a word of their own where theirs is another.
    """
    runs = list(runs)
    verdicts = {group: what_binds(spent_s) for group in groups if (spent_s := _mean_spent_s(runs, group))}
    if groups[0] not in verdicts:
        return ""
    first = verdicts[groups[0]]
    others = [f"{group}: {each.bound}" for group, each in verdicts.items() if each.bound is not first.bound]
    return f"{first} ({', '.join(others)})" if others else str(first)


def _mean_spent_s(runs: Sequence[RunMetrics], group: str) -> dict[Bound, float]:
    """For each second that requests take on an idle fleet, what they lose to each bound; empty: nobody knows."""
    found = [run[group] for run in runs if LOST_FRACTION in run.get(group, {})]
    shares = {bound: [each[lost_to(bound)].value * each[LOST_FRACTION].value for each in found] for bound in LOSSES}
    means: dict[Bound, float] = {
        bound: float(np.mean(each)) for bound, each in shares.items() if each and np.isfinite(each).all()
    }
    return {Bound.ENGINE: 1.0, **means} if means else {}

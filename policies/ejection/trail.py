"""One thing that is measured of a replica, beside the same of its peers."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median_low

from policies.estimators import RecentValues

NUM_RECENT = 5
MIN_RECENT = 3
"""Values without which a replica is nobody's peer."""
WEIGH_EVERY_S = 0.5
"""What comes in within that time has one cause, such as a long prompt before all of it, and counts as one value."""


class Trail:
    """What was measured of late, and how much of it speaks against the replica.

    Values are logarithms of times. Over the usual one of the pool, and in units of ``factor``, a value is 0 that is
    usual, 1 that is ``factor`` times as long, and 2 that is as many times as long again. Less 1, and no more than 1, it
    is what it speaks against the replica; the sum never falls below 0. So values that are usual use up what slow ones
    have added, a single one that took a thousand times as long adds no more than 1, and who has been slow for a moment
    is not remembered for it.

    Source: Page, Continuous inspection schemes (Biometrika 1954): the cumulative sum test.

    Args:
        window_s: What is older is forgotten.
    """

    __slots__ = ("_against", "_new", "_recent", "_weighed_at_s")

    def __init__(self, window_s: float) -> None:
        self._recent = RecentValues(window_s, NUM_RECENT)
        self._new: list[float] = []
        self._against = 0.0
        self._weighed_at_s = -math.inf

    def add(self, log: float, at_s: float) -> None:
        """A value has come in; they come in order of time."""
        if not self._recent.at(at_s):
            self._against = 0.0
            self._new.clear()
        self._recent.add(log, at_s)
        self._new.append(log)

    def mean(self, waiting: Sequence[float], now_s: float) -> float:
        """The mean of the last few, those included that wait and are longer already; NaN if there are too few."""
        recent = self._recent.at(now_s)
        so_far = fmean(recent) if recent else 0.0
        values = [*recent, *(log for log in waiting if log > so_far)][-NUM_RECENT:]
        return fmean(values) if len(values) >= MIN_RECENT else math.nan

    def weigh(self, usual: float, factor: float, waiting: Sequence[float], now_s: float) -> float:
        """What speaks against the replica now, when ``usual`` is the logarithm of what is usual.

        Attempts that wait add to it once they are late, but are not remembered for it.
        """
        unit = math.log(factor)
        if self._new and now_s - self._weighed_at_s >= WEIGH_EVERY_S:
            self._against = max(0.0, self._against + min(1.0, (fmean(self._new) - usual) / unit - 1.0))
            self._new.clear()
            self._weighed_at_s = now_s
        return self._against + sum(min(1.0, max(0.0, (log - usual) / unit - 1.0)) for log in waiting)


def weigh_all(trails: Mapping[str, tuple[Trail, Sequence[float]]], factor: float, now_s: float) -> dict[str, float]:
    """What speaks against each replica now, beside what is usual in the pool.

    That is the median of the replicas' means, the lower one of two: where all become slower at once all means rise side
    by side, and what is usual with them.

    Args:
        trails: Of each replica, with the values of its attempts that wait.
        factor: Above 1.
        now_s: Now.

    Returns:
        Nothing while it is not known what is usual.
    """
    means = [mean for trail, waiting in trails.values() if not math.isnan(mean := trail.mean(waiting, now_s))]
    if not means:
        return {}
    usual = median_low(means)
    return {replica_id: trail.weigh(usual, factor, waiting, now_s) for replica_id, (trail, waiting) in trails.items()}

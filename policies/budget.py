"""How much work may be done twice: a share of what is done once, of late."""

from policies.estimators import FadingRate


class WorkBudget:
    """So much extra work as is a fraction of the ordinary work, over the last while.

    A budget that goes by shares of work, and not by numbers of requests, can't be spent on the longest ones alone. It
    has no floor: where next to nothing is done, next to nothing is done twice.

    Source: Finagle's and Linkerd's retry budgets, which count requests; here it is work.

    Args:
        fraction: Extra work over ordinary work, at the most; 0 to 1.
        memory_s: How long work counts: to 1/e of itself.
    """

    def __init__(self, fraction: float, memory_s: float = 60.0) -> None:
        self._fraction = fraction
        self._memory_s = memory_s
        self._ordinary = FadingRate(memory_s)
        self._extra = FadingRate(memory_s)

    def deposit(self, work: float, at_s: float) -> None:
        """So much ordinary work has come."""
        self._ordinary.add(work, at_s)

    def spend(self, work: float, now_s: float) -> bool:
        """Whether so much may be done twice; if so it counts from now on."""
        allowed = self._fraction * self._ordinary.per_s_at(now_s)
        if self._extra.per_s_at(now_s) + work / self._memory_s > allowed:
            return False
        self._extra.add(work, now_s)
        return True

"""How much work may be done twice: a share of what is done once, of late, whoever does it and why."""

from typing import ClassVar

from policies.contracts import Need
from policies.estimators import FadingRate
from policies.signals import Signal, Started

MEMORY_S = 60.0


class WorkBudget:
    """What a dispatcher's policies have done twice, over what it has done once: one account for all of them.

    Each says how much of the whole it may bring the account up to, so that those that are content with less stop first:
    while lost requests are tried again there are fewer hedges.

    A budget that goes by shares of work, and not by numbers of requests, can't be spent on the longest ones alone. It
    has no floor: where next to nothing is done, next to nothing is done twice.

    Source: Finagle's and Linkerd's retry budgets, which count requests; here it is work, in prompt tokens.

    Args:
        memory_s: How long work counts: to 1/e of itself.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Started})

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._ordinary = FadingRate(memory_s)
        self._extra = FadingRate(memory_s)

    def observe(self, signal: Signal) -> None:
        """A request's prompt is computed for the first time."""
        assert isinstance(signal, Started), "nothing else is consumed"
        self._ordinary.add(signal.request.geometry.uncached_tokens, signal.at_s)

    def spend(self, tokens: int, fraction: float, now_s: float) -> bool:
        """Whether so many tokens may be computed twice; if so they count from now on.

        Args:
            tokens: Of a prompt.
            fraction: All that is done twice over all that is done once, at the most, for who asks; 0 to 1.
            now_s: Now.
        """
        allowed = fraction * self._ordinary.per_s_at(now_s)
        if self._extra.per_s_at(now_s) + tokens / self._memory_s > allowed:
            return False
        self.charge(tokens, now_s)
        return True

    def charge(self, tokens: int, now_s: float) -> None:
        """So many tokens are computed twice, whatever the budget says."""
        self._extra.add(tokens, now_s)

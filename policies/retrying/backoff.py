"""A few attempts, each later than the one before, as long as they are few in all."""

from typing import ClassVar

from policies.attempt_views import LostAttempt
from policies.contracts import Need, Rng
from policies.decisions import Again, GiveUp, RetryDecision
from policies.estimators import FadingRate
from policies.estimators.work_budget import MEMORY_S, WorkBudget
from policies.params import RETRYING
from policies.signals import Signal
from policies.views import RequestView


class Backoff:
    """Is a request tried again whose attempt was lost? A few times, after a while, if not too many are.

    Rule: up to ``max_retries`` times, after ``first_s`` and then ``factor`` times as long each, ``longest_s`` at the
        most, give or take ``jitter_fraction``: those that were lost together do not come back together. All that is
        done twice, hedges included, stays within ``budget_fraction`` of what is done once; but ``floor_per_s`` retries
        are there for everybody, so that a quiet fleet can lose a replica. One that has had its attempts is refused for
        good: retries of its client would multiply these. One that the budget has no room for may come back.
    State: retries of late, and the budget.
    Consumes: nothing; the budget is told of every request that begins.
    Complexity: O(1).
    Failure mode: a fleet that loses more than the budget refuses requests that it might have served. The wait is added
        to the time to the first token of those few that were lost, even if the next replica were ready for them.
    Source: Google SRE book, Handling Overload (at most three attempts, a tenth of all work); Finagle's retry budget,
        in work and with a floor; jittered back-off as in Brooker, Exponential Backoff And Jitter (AWS, 2015).

    Args:
        rng: For the jitter.
        budget: What has been done twice, by retries and by hedges.
        max_retries: Of a request.
        first_s: Wait before the first one.
        factor: Each further wait over the one before.
        longest_s: Longest wait.
        jitter_fraction: A wait is up to so much of itself shorter or longer.
        budget_fraction: Prompt tokens that may be computed twice, over those that are computed once.
        floor_per_s: So many retries a second are free, over the last minute.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        rng: Rng,
        budget: WorkBudget,
        max_retries: int = 2,
        first_s: float = 0.2,
        factor: float = 2.0,
        longest_s: float = 2.0,
        jitter_fraction: float = 0.5,
        budget_fraction: float = 0.1,
        floor_per_s: float = 0.5,
    ) -> None:
        RETRYING.check_number("max_retries", max_retries, 1)
        RETRYING.check_positive("first_s", first_s)
        RETRYING.check_number("factor", factor, 1)
        RETRYING.check_number("longest_s", longest_s, first_s)
        RETRYING.check_number("jitter_fraction", jitter_fraction, 0, 1)
        RETRYING.check_number("budget_fraction", budget_fraction, 0, 1)
        RETRYING.check_number("floor_per_s", floor_per_s, 0)
        self._rng = rng
        self._budget = budget
        self._max_retries = max_retries
        self._first_s = first_s
        self._factor = factor
        self._longest_s = longest_s
        self._jitter_fraction = jitter_fraction
        self._budget_fraction = budget_fraction
        self._floor_per_s = floor_per_s
        self._retries = FadingRate(MEMORY_S)

    def decide(self, request: RequestView, lost: LostAttempt, now_s: float) -> RetryDecision:
        if lost.num_retries >= self._max_retries:
            return GiveUp(may_retry=False)
        if not self._is_affordable(lost.prefill_tokens, now_s):
            return GiveUp(may_retry=True)
        self._retries.add(1.0, now_s)
        return Again(after_s=self._wait_s(lost.num_retries))

    def _is_affordable(self, tokens: int, now_s: float) -> bool:
        if tokens == 0 or self._budget.spend(tokens, self._budget_fraction, now_s):
            return True
        if self._retries.per_s_at(now_s) + 1.0 / MEMORY_S > self._floor_per_s:
            return False
        self._budget.charge(tokens, now_s)
        return True

    def _wait_s(self, num_retries: int) -> float:
        wait_s = min(self._first_s * self._factor**num_retries, self._longest_s)
        return wait_s * (1.0 + self._jitter_fraction * (2.0 * self._rng.random() - 1.0))

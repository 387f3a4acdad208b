"""Two attempts at once for the requests that have the longest to wait."""

import math
from typing import ClassVar

from policies.attempt_views import AttemptView
from policies.candidates import Candidates
from policies.contracts import Need
from policies.estimators.work_budget import WorkBudget
from policies.hedging.limits import HedgeLimits
from policies.params import HEDGING
from policies.signals import Signal
from policies.views import FleetView, ReplicaView, RequestView


class DualPath:
    """How long to wait before a second attempt is sent? Not at all, if the first token is expected to take long.

    Rule: when an attempt's replica is expected to take ``threshold_s`` or more until its first token, a second one is
        sent at once, to the replica with the fewest prompt tokens to compute, as long as that is no worse off, few
        replicas are busy, and the budget, a large one, allows it. Whoever gives the first token first, answers.
    State: a fading mean of how many replicas are busy, and the budget.
    Consumes: nothing.
    Complexity: O(1); a look at every replica ten times a second, and one for each hedge.
    Failure mode: what takes long because it is long takes as long twice; it pays for what it can't know yet, so its
        work is many times that of ``slowdown``.
    Source: redundant requests (Vulimiri et al., Low Latency via Redundancy, CoNEXT 2013), for some of them.

    Args:
        threshold_s: Seconds; from here on two are sent.
        budget: What has been done twice, by hedges and by retries.
        budget_fraction: Prompt tokens that may be computed twice, over those that are computed once.
        max_busy_fraction: With more of the replicas computing prompts, nobody is hedged; 1: whatever the load.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        budget: WorkBudget,
        threshold_s: float = 0.5,
        budget_fraction: float = 0.4,
        max_busy_fraction: float = 0.75,
    ) -> None:
        HEDGING.check_number("threshold_s", threshold_s, 0)
        self._threshold_s = threshold_s
        self._limits = HedgeLimits(budget, budget_fraction, max_busy_fraction)

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        self._limits.note(attempt, fleet, now_s)
        return 0.0 if attempt.expected_s >= self._threshold_s else math.inf

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return self._limits.target(attempt, candidates, now_s)

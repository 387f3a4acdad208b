"""A second attempt after a time that somebody has chosen."""

from typing import ClassVar

from policies.attempt_views import AttemptView
from policies.candidates import Candidates
from policies.contracts import Need
from policies.estimators.work_budget import WorkBudget
from policies.hedging.limits import HedgeLimits
from policies.params import HEDGING
from policies.signals import Signal
from policies.views import FleetView, ReplicaView, RequestView


class FixedDelay:
    """How long to wait before a second attempt is sent? A fixed time.

    Rule: ``wait_s`` after an attempt was sent; to the replica with the fewest prompt tokens to compute, if there is
        room in the budget, few replicas are busy, and that one has no more to compute, or less than would have been
        done there by now.
    State: a fading mean of how many replicas are busy, and the budget.
    Consumes: nothing.
    Complexity: O(1); a look at every replica ten times a second, and one for each hedge.
    Failure mode: it knows nothing of requests: what is right for short prompts hedges every long one, and when all
        replicas become slower it hedges everybody, up to the budget.
    Source: Dean and Barroso, The Tail at Scale (CACM 2013).

    Args:
        wait_s: Seconds.
        budget: What has been done twice, by hedges and by retries.
        budget_fraction: Prompt tokens that may be computed twice, over those that are computed once.
        max_busy_fraction: With more of the replicas computing prompts, nobody is hedged; 1: whatever the load.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        budget: WorkBudget,
        wait_s: float = 1.0,
        budget_fraction: float = 0.05,
        max_busy_fraction: float = 0.75,
    ) -> None:
        HEDGING.check_number("wait_s", wait_s, 0)
        self._wait_s = wait_s
        self._limits = HedgeLimits(budget, budget_fraction, max_busy_fraction)

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        self._limits.note(attempt, fleet, now_s)
        return self._wait_s

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return self._limits.target(attempt, candidates, now_s)

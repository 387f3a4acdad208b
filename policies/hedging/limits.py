"""What every hedging policy is bound by: the load, a budget, and a target that is better off."""

from policies.attempt_views import AttemptView
from policies.candidates import Candidates
from policies.estimators.work_budget import WorkBudget
from policies.hedging.load_gate import LoadGate
from policies.params import HEDGING
from policies.views import FleetView, ReplicaView


class HedgeLimits:
    """When a hedge is worth it, whatever made somebody think of it.

    Args:
        budget: What has been done twice, by hedges and by others.
        budget_fraction: Prompt tokens that may be computed twice, over those that are computed once, at the most.
        max_busy_fraction: With more of the replicas computing prompts nobody is hedged: what helps one request then
            takes the place of another.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, budget: WorkBudget, budget_fraction: float, max_busy_fraction: float) -> None:
        HEDGING.check_number("budget_fraction", budget_fraction, 0, 1)
        self._budget = budget
        self._budget_fraction = budget_fraction
        self._gate = LoadGate(max_busy_fraction)

    def note(self, attempt: AttemptView, fleet: FleetView, now_s: float) -> None:
        """An attempt was sent that is no hedge."""
        self._gate.look(attempt, fleet, now_s)

    def target(self, attempt: AttemptView, candidates: Candidates, now_s: float) -> ReplicaView | None:
        """The candidate that has the least to compute, if the fleet, the candidate and the budget allow a hedge."""
        if not self._gate.is_open(now_s):
            return None
        best = min(candidates, key=prompts_first)
        if not _is_better_off(attempt, best, now_s):
            return None
        return best if self._budget.spend(attempt.prefill_tokens, self._budget_fraction, now_s) else None


def _is_better_off(attempt: AttemptView, there: ReplicaView, now_s: float) -> bool:
    """Whether there is no more to compute there than here, or less than would have been done there by now."""
    ahead_there = there.prefill_tokens + attempt.prefill_tokens
    ahead_here = max(1, attempt.replica.prefill_tokens)
    would_take_s = attempt.expected_s * ahead_there / ahead_here
    return ahead_there <= ahead_here or 0 < would_take_s <= now_s - attempt.sent_at_s


def prompts_first(replica: ReplicaView) -> tuple[int, int, str]:
    """What second attempts compare replicas by: prompt tokens to compute, then all work, then the id."""
    return replica.prefill_tokens, replica.work_tokens, replica.replica_id

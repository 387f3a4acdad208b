"""A second attempt for those that take longer than they should, and not for those that are long."""

import math
from typing import ClassVar

from policies.attempt_views import AttemptView
from policies.candidates import Candidates
from policies.contracts import Need
from policies.estimators.work_budget import WorkBudget
from policies.hedging.limits import HedgeLimits
from policies.hedging.waits import Waits
from policies.params import HEDGING
from policies.signals import ATTEMPT_ENDS, AttemptSignal, FirstToken, Signal
from policies.views import FleetView, ReplicaView, RequestView


class Slowdown:
    """How long to wait before a second attempt is sent? As many times the expected time as nearly all others took.

    Rule: an attempt is expected to take what its replica has to compute before it and its own prompt; what it took
        over what was expected is its slowdown. After a high quantile of its lane's slowdowns of late, from
        ``min_slowdown`` to ``max_slowdown``, times what is expected of it, and at least ``min_delay_s``, something is
        wrong with its replica; where to is decided as by ``fixed_delay``.
    State: the last samples of each lane, and every attempt under way.
    Consumes: ``FirstToken``, ``Completed``, ``Failed``, ``Cancelled`` and ``Superseded``: one that was beaten has
        been stretched at least so far.
    Complexity: O(log n) for n samples, which are at most 2,000 a lane.
    Failure mode: when all replicas become slower everybody is hedged, up to the budget, until the load closes the gate
        or the window has taken it in. It hedges nobody whose replica turns slow after the first token.
    Source: Dean and Barroso, The Tail at Scale (CACM 2013), with the time in proportion to the work.

    Args:
        quantile: Of the slowdowns.
        window_s: How long a sample counts.
        min_samples: With fewer in a lane nobody is hedged.
        min_delay_s: Shortest wait.
        min_slowdown: What is shorter is no sickness, however rare: where nearly nobody is late, those few that are a
            little late would use the budget up.
        max_slowdown: What is longer is not normal, however many it happens to.
        budget: What has been done twice, by hedges and by retries.
        budget_fraction: Prompt tokens that may be computed twice, over those that are computed once.
        max_busy_fraction: With more of the replicas computing prompts, nobody is hedged; 1: whatever the load.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({FirstToken, *ATTEMPT_ENDS})

    def __init__(
        self,
        *,
        budget: WorkBudget,
        quantile: float = 0.95,
        window_s: float = 60.0,
        min_samples: int = 200,
        min_delay_s: float = 0.05,
        min_slowdown: float = 2.0,
        max_slowdown: float = 4.0,
        budget_fraction: float = 0.05,
        max_busy_fraction: float = 0.75,
    ) -> None:
        self._waits = Waits(quantile, window_s, min_samples)
        HEDGING.check_number("min_delay_s", min_delay_s, 0)
        HEDGING.check_number("min_slowdown", min_slowdown, 0)
        HEDGING.check_number("max_slowdown", max_slowdown, min_slowdown)
        self._min_delay_s = min_delay_s
        self._min_slowdown = min_slowdown
        self._max_slowdown = max_slowdown
        self._limits = HedgeLimits(budget, budget_fraction, max_busy_fraction)

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        self._limits.note(attempt, fleet, now_s)
        expected_s = attempt.expected_s
        usual = self._waits.begin(request.lane, attempt, expected_s, now_s)
        if usual == math.inf:
            return math.inf
        return max(self._min_delay_s, expected_s * max(self._min_slowdown, min(usual, self._max_slowdown)))

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return self._limits.target(attempt, candidates, now_s)

    def observe(self, signal: AttemptSignal) -> None:
        self._waits.observe(signal)

"""A second attempt for those that wait longer than nearly everybody."""

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


class Percentile:
    """How long to wait before a second attempt is sent? As long as nearly all others of its lane had to.

    Rule: a high quantile of the lane's times to the first token of late, between ``min_delay_s`` and ``max_delay_s``;
        where to is decided as by ``fixed_delay``.
    State: the last samples of each lane, and every attempt under way.
    Consumes: ``FirstToken``, ``Completed``, ``Failed``, ``Cancelled`` and ``Superseded``: one that was beaten has
        waited at least so long.
    Complexity: O(log n) for n samples, which are at most 2,000 a lane.
    Failure mode: it takes size for sickness: in a lane of ragged prompts it hedges the long ones, which gains nothing
        and does the most work twice; ``slowdown`` does not. A replica that is sick for long becomes the quantile, and
        nobody is hedged any more; hence ``max_delay_s``.
    Source: Finagle's BackupRequestFilter; Cassandra's speculative retry, whose bounds it has (CASSANDRA-14293).

    Args:
        quantile: Of the times.
        window_s: How long a sample counts.
        min_samples: With fewer in a lane nobody is hedged.
        min_delay_s: Shortest wait.
        max_delay_s: Longest wait.
        budget: What has been done twice, by hedges and by retries.
        budget_fraction: Prompt tokens that may be computed twice, over those that are computed once.
        max_busy_fraction: With more of the replicas computing prompts, nobody is hedged; 1: whatever the load.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({FirstToken, *ATTEMPT_ENDS})

    def __init__(
        self,
        *,
        budget: WorkBudget,
        quantile: float = 0.95,
        window_s: float = 60.0,
        min_samples: int = 200,
        min_delay_s: float = 0.05,
        max_delay_s: float = 10.0,
        budget_fraction: float = 0.05,
        max_busy_fraction: float = 0.75,
    ) -> None:
        self._waits = Waits(quantile, window_s, min_samples)
        HEDGING.check_number("min_delay_s", min_delay_s, 0)
        HEDGING.check_number("max_delay_s", max_delay_s, min_delay_s)
        self._min_delay_s = min_delay_s
        self._max_delay_s = max_delay_s
        self._limits = HedgeLimits(budget, budget_fraction, max_busy_fraction)

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        self._limits.note(attempt, fleet, now_s)
        usual_s = self._waits.begin(request.lane, attempt, 1.0, now_s)
        return max(self._min_delay_s, min(usual_s, self._max_delay_s)) if usual_s < math.inf else math.inf

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return self._limits.target(attempt, candidates, now_s)

    def observe(self, signal: AttemptSignal) -> None:
        self._waits.observe(signal)

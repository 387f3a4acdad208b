"""What a request finds before it, for the policies that decide whether it is let in."""

from functools import cached_property
from typing import TYPE_CHECKING

from policies.views import RequestView, Role
from routing.geometry import ServiceRates
from routing.lane_access import LaneFleet
from routing.stages import Plan

if TYPE_CHECKING:
    from routing.waiting_lines import Line


class Backlog:
    """A :class:`policies.views.BacklogView`; valid until the next event.

    Nothing is added up before somebody asks, so a policy pays for what it looks at.

    Args:
        request: Who asks.
        plan: Its stages.
        line: Where it would wait for the first of them.
        fleet: The replicas of its lane.
        rates: How fast they are.
        now_s: Now.
    """

    def __init__(
        self, request: RequestView, plan: Plan, line: "Line", now_s: float, *, fleet: LaneFleet, rates: ServiceRates
    ) -> None:
        self.stage: Role = plan[0]
        self._request = request
        self._plan = plan
        self._line = line
        self._fleet = fleet
        self._rates = rates
        self._now_s = now_s

    @property
    def num_waiting(self) -> int:
        return len(self._line.lives)

    @property
    def waiting_s(self) -> float:
        return self._line.work_s

    @property
    def ahead_s(self) -> float:
        return self._line.ahead_s(self._request)

    @property
    def oldest_arrival_s(self) -> float:
        return self._line.oldest_arrival_s(self._now_s)

    @property
    def waiting_kv_tokens(self) -> int:
        return self._line.kv_tokens

    @property
    def work_per_s(self) -> float:
        return self._line.pace.work_per_s(self.num_replicas)

    @cached_property
    def num_replicas(self) -> int:
        return len(self._fleet.live(self.stage, self._now_s))

    @cached_property
    def ongoing_s(self) -> float:
        return self._rates.queue_s(sum(each.prefill_tokens for each in self._fleet.live(self.stage, self._now_s)))

    @cached_property
    def num_ongoing(self) -> int:
        return sum(each.num_ongoing_requests for each in self._fleet.live(self.stage, self._now_s))

    @cached_property
    def kv_tokens(self) -> int:
        return sum(each.kv_tokens for each in self._fleet.live(self._plan[-1], self._now_s))

    @cached_property
    def kv_capacity_tokens(self) -> int:
        return sum(each.kv_capacity_tokens for each in self._fleet.live(self._plan[-1], self._now_s))

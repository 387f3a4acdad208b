"""Lanes are held against one pool that meets the same requests."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from policies.errors import ConfigError
from policies.estimators import FadingRate
from policies.views import RequestView, Role
from routing.fleet.fleet import Fleet
from routing.lanes.lanes import ONE_LANE, Lane
from routing.lanes.queue_model import QueueModel

FIELD = "policies.lanes.guard.params"
FOLLOW_S = 1.0
"""Between two looks at which replicas there are."""


class CounterfactualGuard:
    """Do lanes help now? As long as the same requests would do no better in one pool.

    Rule: every request that arrives goes through two light models, one with the lanes and one with a single pool of the
        same replicas (:class:`routing.lanes.queue_model.QueueModel`). A request costs ``(ttft / slo)**2`` there, and 1
        when it is late; without an SLO, 30 times its own work stands for one. Costs fade over ``memory_s``. Lanes go
        off when theirs are more than ``1 + hysteresis`` times one pool's, and on again when one pool's are more than
        that times theirs. Both models go on whichever is in force, so that no trial is needed.
    State: two models, each with a record for each replica and those that wait in it; two fading sums.
    Complexity: two simulated arrivals for each that comes, times ``num_gateways``; O(replicas) once a second.
    Failure mode: as good as the estimates of work; what decodes beside prompts, caches that differ between replicas and
        clients that come back because of a refusal are in neither model. Where nothing is refused and bursts fill the
        engines, what went there while lanes were off stays in their way for long. Decode has no prompts to wait for:
        its lanes stay on.

    Args:
        laned: The model with the lanes.
        pooled: The one with a single lane, ``ONE_LANE``.
        num_gateways: Each sees its part of the requests, and takes its own of late for those of the others.
        memory_s: In which what was seen fades to 1/e.
        hysteresis: By which fraction one must be worse.
        min_requests: Seen of late; fewer say nothing.

    Raises:
        ConfigError: A number out of range.
    """

    def __init__(
        self,
        *,
        laned: QueueModel,
        pooled: QueueModel,
        num_gateways: int = 1,
        memory_s: float = 60.0,
        hysteresis: float = 0.1,
        min_requests: int = 100,
    ) -> None:
        for name, value in {"memory_s": memory_s, "hysteresis": hysteresis, "min_requests": min_requests}.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{FIELD}.{name}", value, "more than 0")
        self._laned, self._pooled = laned, pooled
        self._memory_s = memory_s
        self._bound = 1.0 + hysteresis
        self._min_requests = min_requests
        self._num_seen, self._laned_cost, self._pooled_cost = (FadingRate(memory_s) for _ in range(3))
        self._latest: deque[RequestView] = deque(maxlen=num_gateways - 1)
        self._replica_ids: dict[str, list[str]] = {}
        self._followed_s = -math.inf
        self._are_on = True

    def look(self, request: RequestView, stage: Role, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        """Called when a request has arrived."""
        if not any(lane.name == request.lane for lane in lanes):
            return
        if now_s - self._followed_s >= FOLLOW_S:
            self._follow(fleet, now_s)
        for each in self._everywhere(request, now_s):
            self._num_seen.add(1.0, now_s)
            self._laned_cost.add(sum(self._laned.arrive(each, each.lane, stage, now_s)), now_s)
            self._pooled_cost.add(sum(self._pooled.arrive(each, ONE_LANE, stage, now_s)), now_s)
        self._judge(now_s)

    def are_on(self, role: Role) -> bool:
        return role is Role.DECODE or self._are_on

    def gauges(self) -> Mapping[str, float]:
        """``lanes_on``: 1 unless lanes are off where prompts are computed."""
        return {"lanes_on": float(self._are_on)}

    def _judge(self, now_s: float) -> None:
        if self._num_seen.per_s_at(now_s) * self._memory_s < self._min_requests:
            return
        laned, pooled = self._laned_cost.per_s_at(now_s), self._pooled_cost.per_s_at(now_s)
        present, other = (laned, pooled) if self._are_on else (pooled, laned)
        if present > self._bound * other:
            self._are_on = not self._are_on

    def _everywhere(self, request: RequestView, now_s: float) -> Iterator[RequestView]:
        """The request, and earlier ones in the place of those that come to the other gateways meanwhile."""
        yield request
        for number, each in enumerate(self._latest):
            later_s = now_s - each.arrival_s
            yield replace(
                each,
                request_id=f"{request.request_id}/{number}",
                arrival_s=now_s,
                deadline_s=each.deadline_s + later_s,
                first_token_by_s=each.first_token_by_s + later_s,
            )
        self._latest.append(request)

    def _follow(self, fleet: Fleet, now_s: float) -> None:
        """The models have the replicas that there are."""
        self._followed_s = now_s
        for pool in fleet.pool_names:
            replica_ids = [each.replica_id for each in fleet.live_in((pool,), now_s)]
            if replica_ids != self._replica_ids.get(pool):
                self._replica_ids[pool] = replica_ids
                self._laned.follow(pool, replica_ids)
                self._pooled.follow(pool, replica_ids)

"""What a request finds that comes in: who waits, what replicas have to do, and when its first token would come."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from policies.views import ReplicaView, RequestView, Role
from routing.fleet.first_token import FirstTokenEstimator
from routing.lanes.access import LaneFleet
from routing.queues.homes import ANYWHERE, HomeFinder
from routing.request.stages import Plan

if TYPE_CHECKING:
    from routing.queues.queues import Queue


class Backlog:
    """A :class:`policies.views.BacklogView`; valid until the next event.

    Nothing is added up before it is asked for, so a policy pays for what it looks at.

    Args:
        request: The request that finds it.
        plan: Its stages.
        queue: Where it would wait for the first of them.
        now_s: Now.
        home: The replica that it waits for already; ``ANYWHERE``: that has to be found.
        fleet: The replicas of its lane.
        homes: Knows which of them the request would wait for.
        first_tokens: How long first tokens take there.
        shared_kv_fraction: Says how much of their KV requests hold in common.
    """

    def __init__(
        self,
        request: RequestView,
        plan: Plan,
        queue: "Queue",
        now_s: float,
        *,
        home: str,
        fleet: LaneFleet,
        homes: HomeFinder,
        first_tokens: FirstTokenEstimator,
        shared_kv_fraction: Callable[[], float],
    ) -> None:
        self.stage: Role = plan[0]
        self._request = request
        self._plan = plan
        self._queue = queue
        self._fleet = fleet
        self._first_tokens = first_tokens
        self._homes = homes
        self._waits_for = home
        self._now_s = now_s
        self._find_shared_kv_fraction = shared_kv_fraction

    @cached_property
    def _live(self) -> Sequence[ReplicaView]:
        return self._fleet.live(self.stage, self._now_s)

    @cached_property
    def _home(self) -> str:
        if self._waits_for and any(each.replica_id == self._waits_for for each in self._live):
            return self._waits_for
        anywhere_tokens = self._queue.orders.anywhere.prefill_tokens + self._queue.elsewhere.tokens_at(self._now_s)
        return self._homes.home_of(self._request, self.stage, self._live, anywhere_tokens, self._now_s)

    @property
    def num_waiting(self) -> int:
        return len(self._queue.waiting)

    @property
    def waiting_s(self) -> float:
        return self._queue.work_s

    @property
    def ahead_s(self) -> float:
        return self._queue.orders.ahead_s(self._request, self._home, self.num_replicas)

    @property
    def oldest_arrival_s(self) -> float:
        return self._queue.oldest_arrival_s(self._now_s)

    @property
    def waiting_kv_tokens(self) -> int:
        return self._queue.kv_tokens

    @property
    def work_per_s(self) -> float:
        return self._queue.drain_rate.work_per_s(self.num_replicas)

    @cached_property
    def num_replicas(self) -> int:
        return len(self._live)

    @cached_property
    def first_token_s(self) -> float:
        return self._first_token_s(0)

    def first_token_behind_s(self, work_s: float) -> float:
        tokens = self._first_tokens.rates.queued_tokens(work_s)
        return self._first_token_s(tokens) if tokens else self.first_token_s

    def _first_token_s(self, more_tokens: int) -> float:
        request, estimate, live = self._request, self._first_tokens, self._live
        if not live:
            return math.inf
        anywhere_tokens = more_tokens + self._queue.orders.tokens_ahead(request, ANYWHERE)
        anywhere_tokens += self._queue.elsewhere_ahead(request, self._now_s)
        ahead_s = self._ahead_at_replicas_s
        level_s = estimate.level_s(live, ahead_s, anywhere_tokens)
        if self._queue.is_held or all(each.num_ongoing_requests >= each.max_ongoing_requests for each in self._live):
            level_s = max(level_s, self.ahead_s / max(self.work_per_s, 1e-9))
        at = zip(live, ahead_s, self._own_at_replicas_s, strict=True)
        served = ((its_s, own_s) for each, its_s, own_s in at if self._home in (ANYWHERE, each.replica_id))
        return min(max(level_s, its_s) + own_s for its_s, own_s in served)

    @cached_property
    def _own_at_replicas_s(self) -> Sequence[float]:
        """What the request itself takes at each, where it would be served; else nothing."""
        request, own_s = self._request, self._first_tokens.own_s
        return [own_s(request, each) if self._home in (ANYWHERE, each.replica_id) else 0.0 for each in self._live]

    @cached_property
    def _ahead_at_replicas_s(self) -> Sequence[float]:
        """What goes before the request at each replica: prompts that are there, and of those that wait for it the ones
        that are first; of what waits at other gateways as large a part as here, of what waits in other queues all.
        """
        orders, request = self._queue.orders, self._request
        is_known = not any(each.waiting_tokens_elsewhere for each in self._live)
        fraction = 0.0 if is_known else orders.fraction_ahead(request)

        def before_tokens(replica: ReplicaView) -> int:
            elsewhere = replica.waiting_tokens_elsewhere
            in_other_queues = replica.waiting_tokens - elsewhere - orders.tokens_at(replica.replica_id)
            ahead = orders.tokens_ahead(request, replica.replica_id)
            return replica.prefill_tokens + ahead + in_other_queues + int(fraction * elsewhere)

        return [self._first_tokens.prompts_s(each, before_tokens(each)) for each in self._live]

    @cached_property
    def ongoing_s(self) -> float:
        return self._first_tokens.rates.queue_s(sum(each.prefill_tokens for each in self._live))

    @cached_property
    def num_ongoing(self) -> int:
        return sum(each.num_ongoing_requests for each in self._live)

    @cached_property
    def kv_tokens(self) -> int:
        return sum(each.kv_tokens for each in self._fleet.live(self._plan[-1], self._now_s))

    @property
    def shared_kv_fraction(self) -> float:
        return self._find_shared_kv_fraction()

    @cached_property
    def kv_capacity_tokens(self) -> int:
        return sum(each.kv_capacity_tokens for each in self._fleet.live(self._plan[-1], self._now_s))

"""Queues: where requests wait for a replica, how fast each drains, and what a request finds that joins."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from policies.contracts import PolicySet, QueueingPolicy
from policies.decisions import ADMIT, Reject, StartDecision, Wait
from policies.signals import permit_of
from policies.views import Candidates, Priority, RequestView, Role
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess, LaneFleet
from routing.request.request import Request
from routing.request.stages import Plan
from routing.sizing.geometry import ServiceRates

MEMORY_S = 10.0
"""Of busy time, after which what was seen counts for little."""


class DrainRate:
    """How fast one queue drains: work that leaves it per second, while it is not empty.

    Only work that had to wait counts, and only time in which requests waited: a queue that is empty says nothing about
    how fast it could move. Until there is something to go by, one service-second a second for each replica.
    """

    def __init__(self) -> None:
        self._work_s = 0.0
        self._busy_s = 0.0
        self._unknown_s = 1.0
        self._since_s = math.inf

    def begins(self, now_s: float) -> None:
        """The queue is not empty any more."""
        self._since_s = now_s

    def moves(self, work_s: float, now_s: float) -> None:
        """A request has left the queue for a replica."""
        passed_s = now_s - self._since_s
        if passed_s > 0.0:
            fading = math.exp(-passed_s / MEMORY_S)
            self._busy_s = self._busy_s * fading + passed_s
            self._work_s = self._work_s * fading
            self._unknown_s *= fading
            self._since_s = now_s
        if self._busy_s:
            self._work_s += work_s

    def work_per_s(self, num_replicas: int) -> float:
        """Service-seconds a second."""
        return (self._work_s + self._unknown_s * num_replicas) / (self._busy_s + self._unknown_s)


class Backlog:
    """A :class:`policies.views.BacklogView`; valid until the next event.

    Nothing is added up before it is asked for, so a policy pays for what it looks at.

    Args:
        request: The request that finds it.
        plan: Its stages.
        queue: Where it would wait for the first of them.
        fleet: The replicas of its lane.
        rates: How fast they are.
        now_s: Now.
    """

    def __init__(
        self, request: RequestView, plan: Plan, queue: "Queue", now_s: float, *, fleet: LaneFleet, rates: ServiceRates
    ) -> None:
        self.stage: Role = plan[0]
        self._request = request
        self._plan = plan
        self._queue = queue
        self._fleet = fleet
        self._rates = rates
        self._now_s = now_s

    @property
    def num_waiting(self) -> int:
        return len(self._queue.waiting)

    @property
    def waiting_s(self) -> float:
        return self._queue.work_s

    @property
    def ahead_s(self) -> float:
        return self._queue.ahead_s(self._request)

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


class Queue:
    """One queue, and what there is to say about the requests in it.

    Args:
        name: Of the queue.
        stage: What its requests wait for.
        order: The policy that puts them in order.

    Attributes:
        waiting: Its requests by id, the one that has waited longest first.
        work_s: Work of their stage, in service-seconds.
        kv_tokens: KV tokens that they are expected to hold at their longest.
        drain_rate: How fast the queue moves.
        order: The policy.
    """

    def __init__(self, name: str, stage: Role, order: QueueingPolicy) -> None:
        self.name = name
        self.stage = stage
        self.work_s = 0.0
        self.kv_tokens = 0
        self.drain_rate = DrainRate()
        self.waiting: dict[str, Request] = {}
        self._num_of = dict.fromkeys(Priority, 0)
        self.order = order
        self._work_ahead_s: Callable[[RequestView], float] | None = getattr(order, "work_ahead_s", None)

    def push(self, request: Request, now_s: float) -> None:
        """A request is enqueued."""
        view = request.view
        if not self.waiting:
            self.drain_rate.begins(now_s)
        self.waiting[view.request_id] = request
        self.work_s += view.geometry.work_s(self.stage)
        self.kv_tokens += view.kv_tokens
        self._num_of[view.priority] += 1
        self.order.push(view, now_s)

    def peek(self, now_s: float) -> Request:
        """The request that is next."""
        return self.waiting[self.order.peek(now_s).request_id]

    def pop(self, now_s: float) -> Request:
        """The next one leaves."""
        request = self.waiting[self.order.pop(now_s).request_id]
        self._leave(request)
        return request

    def remove(self, request_id: str) -> None:
        """A request leaves without a replica, if it is here."""
        request = self.waiting.get(request_id)
        if request is not None and self.order.remove(request.view):
            self._leave(request)

    def ahead_s(self, request: RequestView) -> float:
        """Work of those that would go before a request."""
        return self.work_s if self._work_ahead_s is None else self._work_ahead_s(request)

    def oldest_arrival_s(self, now_s: float) -> float:
        """When the request that has waited longest came in; now, when none waits."""
        return next(iter(self.waiting.values())).view.arrival_s if self.waiting else now_s

    def num_at_least(self, priority: Priority) -> int:
        """How many wait of a class and of those above it."""
        return sum(num for each, num in self._num_of.items() if each.rank <= priority.rank)

    def by_class(self) -> dict[Priority, list[RequestView]]:
        """Requests by class; O(n)."""
        by_class: dict[Priority, list[RequestView]] = {priority: [] for priority in Priority}
        for request in self.waiting.values():
            by_class[request.view.priority].append(request.view)
        return by_class

    def _leave(self, request: Request) -> None:
        view = request.view
        del self.waiting[view.request_id]
        self.work_s = self.work_s - view.geometry.work_s(self.stage) if self.waiting else 0.0
        self.kv_tokens -= view.kv_tokens
        self._num_of[view.priority] -= 1


Move = tuple[Request, Candidates | Reject]
"""A request that waits no longer: replicas that would take it (none: there is none to wait for), or a refusal."""


class Queues:
    """All queues of one dispatcher.

    Args:
        policies: Those that put queues in order, and the one that may keep the head of a queue from starting.
        access: Which replicas a lane may use.
        fleet: All replicas.
        rates: How fast they are.
    """

    def __init__(self, policies: PolicySet, access: LaneAccess, fleet: Fleet, rates: ServiceRates) -> None:
        self._access = access
        self._fleet = fleet
        self._rates = rates
        self._admission = policies.admission
        self._start: Callable[[RequestView, Backlog, float, Any], StartDecision] | None
        self._start = getattr(policies.admission, "start", None)
        queues = policies.queues.items()
        self._queues = {name: Queue(name, access.stage_of(name), order) for name, order in queues}
        self.held: dict[str, Role] = {}
        """Queues whose head admission keeps from starting until a request has ended, and their stages."""

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def __bool__(self) -> bool:
        for queue in self._queues.values():  # noqa: SIM110 - asked after every event; a generator would cost more
            if queue.waiting:
                return True
        return False

    def backlog(self, request: RequestView, plan: Plan, fleet: LaneFleet, now_s: float) -> Backlog:
        """What a request finds that is to go through the stages of ``plan``, on the replicas of its lane."""
        queue = self._queues[self._access.queue_of(plan[0], request.lane)]
        return Backlog(request, plan, queue, now_s, fleet=fleet, rates=self._rates)

    def push(self, request: Request, now_s: float) -> None:
        """Enqueues a request for its stage."""
        self._queue_of(request).push(request, now_s)

    def remove(self, request: Request) -> None:
        """The request waits no longer, if it did."""
        self._queue_of(request).remove(request.view.request_id)

    def take_over(self, before: "Queues", now_s: float) -> None:
        """What waits there waits here from now on: in the same queues, where they are the same, else as it came."""
        moved: list[Request] = []
        for name, queue in before._queues.items():
            if name in self._queues and self._queues[name].order is queue.order:
                self._queues[name] = queue
                continue
            moved += queue.waiting.values()
            if name in self._queues:
                self._queues[name].drain_rate = queue.drain_rate
        for request in sorted(moved, key=lambda each: each.view.arrival_s):
            self.push(request, now_s)

    def can_wait(self, request: Request, now_s: float) -> bool:
        """Whether there is a replica worth waiting for."""
        live = self._access.live(request.stage, request.view.lane, self._fleet, now_s)
        failed = request.failed_replicas
        return bool(live) if not failed else any(each.replica_id not in failed for each in live)

    def moves(self, stage: Role, now_s: float) -> Iterator[Move]:
        """Requests that need not wait any longer; what is done about each counts before the next is looked at."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            queue = self._queues[name]
            if queue.waiting:
                yield from self._moves_of(queue, now_s)

    def blocked(self, stage: Role, now_s: float) -> Iterator[Queue]:
        """Queues of a stage whose heads wait for room, and for nothing else."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            queue = self._queues[name]
            if queue.waiting and name not in self.held and self._access.room_for(name, self._fleet, now_s) is None:
                yield queue

    def _moves_of(self, queue: Queue, now_s: float) -> Iterator[Move]:
        passed_over: list[Request] = []
        while queue.waiting and (room := self._access.room_for(queue.name, self._fleet, now_s)) is not None:
            verdict = self._may_start(queue, now_s)
            if isinstance(verdict, Wait):
                self.held[queue.name] = queue.stage
                break
            request = queue.pop(now_s)
            if isinstance(verdict, Reject):
                yield request, verdict
                continue
            if request.failed_replicas:
                room = self._without_failed(request, now_s)
                if not room and self.can_wait(request, now_s):
                    passed_over.append(request)
                    continue
            queue.drain_rate.moves(request.view.geometry.work_s(queue.stage), now_s)
            yield request, room
        self._put_back(queue, passed_over, now_s)

    def _may_start(self, queue: Queue, now_s: float) -> StartDecision:
        """Asked before anything is spent on the request that is next."""
        if self._start is None:
            return ADMIT
        self.held.pop(queue.name, None)
        request = queue.peek(now_s)
        if request.num_sent:
            return ADMIT
        fleet = self._access.view(request.view, self._fleet)
        backlog = self.backlog(request.view, request.plan, fleet, now_s)
        return self._start(request.view, backlog, now_s, permit_of(self._admission, request.permits))

    def _put_back(self, queue: Queue, passed_over: list[Request], now_s: float) -> None:
        """The room is where they have failed before: they keep their places in front of the others."""
        if passed_over:
            passed_over += [queue.pop(now_s) for _ in range(len(queue.waiting))]
        for request in passed_over:
            queue.push(request, now_s)

    def _without_failed(self, request: Request, now_s: float) -> Candidates:
        return self._access.with_room(request.stage, request.view.lane, self._fleet, now_s, request.failed_replicas)

    def _queue_of(self, request: Request) -> Queue:
        return self._queues[self._access.queue_of(request.stage, request.view.lane)]

    def gauges(self, now_s: float) -> dict[str, float]:
        """For metrics, by class and queue: requests that wait, their work, and how long the oldest has been there.

        ``queue_requests:<class>:<queue>``, ``queue_work_seconds:<class>:<queue>``,
        ``queue_oldest_age_seconds:<class>:<queue>``: 0 where none waits. O(n) when it is read.
        """
        gauges = {}
        for name, queue in self._queues.items():
            for priority, waiting in queue.by_class().items():
                oldest_s = min((each.arrival_s for each in waiting), default=now_s)
                gauges[f"queue_requests:{priority}:{name}"] = float(len(waiting))
                gauges[f"queue_work_seconds:{priority}:{name}"] = sum(
                    each.geometry.work_s(queue.stage) for each in waiting
                )
                gauges[f"queue_oldest_age_seconds:{priority}:{name}"] = now_s - oldest_s
        return gauges

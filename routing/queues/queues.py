"""Queues: where requests wait for a replica, how fast each drains, and what a request finds that joins."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property

from policies.contracts import PolicySet, QueueingPolicy
from policies.decisions import ADMIT, Reject, StartDecision, Wait
from policies.views import Candidates, Priority, RequestView, Role
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess, LaneFleet
from routing.request.stages import Plan
from routing.request.state import RequestState
from routing.sizing.geometry import ServiceRates

MEMORY_S = 10.0
"""Of busy time, after which what was seen counts for little."""


class DrainRate:
    """How fast one queue drains: work that leaves it per second, while there is somebody in it.

    Only work that had to wait counts, and only time in which somebody waited: a queue that is empty says nothing about
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
        """Somebody has left the queue for a replica."""
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

    Nothing is added up before somebody asks, so a policy pays for what it looks at.

    Args:
        request: Who asks.
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
        return len(self._queue.states)

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
    """One queue, and what there is to say about those who wait in it.

    Args:
        name: Of the queue.
        stage: What they wait for.
        order: Puts them in order.

    Attributes:
        states: Those who wait, by request id, the one that has waited longest first.
        work_s: Their work.
        kv_tokens: KV tokens that they are expected to hold at their longest.
        drain_rate: How fast the queue moves.
        order: What puts them in order.
    """

    def __init__(self, name: str, stage: Role, order: QueueingPolicy) -> None:
        self.name = name
        self.stage = stage
        self.work_s = 0.0
        self.kv_tokens = 0
        self.drain_rate = DrainRate()
        self.states: dict[str, RequestState] = {}
        self._num_of = dict.fromkeys(Priority, 0)
        self.order = order
        self._work_ahead_s: Callable[[RequestView], float] | None = getattr(order, "work_ahead_s", None)

    def push(self, state: RequestState, now_s: float) -> None:
        """Somebody joins."""
        request = state.request
        if not self.states:
            self.drain_rate.begins(now_s)
        self.states[request.request_id] = state
        self.work_s += request.geometry.work_s(self.stage)
        self.kv_tokens += request.kv_tokens
        self._num_of[request.priority] += 1
        self.order.push(request, now_s)

    def peek(self, now_s: float) -> RequestState:
        """Who is next."""
        return self.states[self.order.peek(now_s).request_id]

    def pop(self, now_s: float) -> RequestState:
        """The next one leaves."""
        state = self.states[self.order.pop(now_s).request_id]
        self._leave(state)
        return state

    def remove(self, request_id: str) -> None:
        """Somebody gives up, if there."""
        state = self.states.get(request_id)
        if state is not None and self.order.remove(request_id):
            self._leave(state)

    def ahead_s(self, request: RequestView) -> float:
        """Work of those that would go before a request."""
        return self.work_s if self._work_ahead_s is None else self._work_ahead_s(request)

    def oldest_arrival_s(self, now_s: float) -> float:
        """When the one that has waited longest came in; now, when nobody waits."""
        return next(iter(self.states.values())).request.arrival_s if self.states else now_s

    def num_at_least(self, priority: Priority) -> int:
        """How many wait of a class and of those above it."""
        return sum(num for each, num in self._num_of.items() if each.rank <= priority.rank)

    def by_class(self) -> dict[Priority, list[RequestView]]:
        """Who waits, by class; O(n)."""
        waiting: dict[Priority, list[RequestView]] = {priority: [] for priority in Priority}
        for state in self.states.values():
            waiting[state.request.priority].append(state.request)
        return waiting

    def _leave(self, state: RequestState) -> None:
        request = state.request
        del self.states[request.request_id]
        self.work_s = self.work_s - request.geometry.work_s(self.stage) if self.states else 0.0
        self.kv_tokens -= request.kv_tokens
        self._num_of[request.priority] -= 1


Move = tuple[RequestState, Candidates | Reject]
"""A request that waits no longer: replicas that would take it (none: there is nobody to wait for), or a refusal."""


class Queues:
    """All lines of one dispatcher.

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
        self._start: Callable[[RequestView, Backlog, float], StartDecision] | None
        self._start = getattr(policies.admission, "start", None)
        queues = policies.queues.items()
        self._queues = {name: Queue(name, access.stage_of(name), order) for name, order in queues}
        self.held: dict[str, Role] = {}
        """Lines whose head admission keeps from starting until a request has ended, and their stages."""

    def __len__(self) -> int:
        return sum(len(queue.states) for queue in self._queues.values())

    def backlog(self, request: RequestView, plan: Plan, now_s: float) -> Backlog:
        """What a request finds that is to go through the stages of ``plan``."""
        queue = self._queues[self._access.queue_of(plan[0], request.lane)]
        return Backlog(request, plan, queue, now_s, fleet=self._access.view(request, self._fleet), rates=self._rates)

    def push(self, state: RequestState, now_s: float) -> None:
        """Enqueues a request for its stage."""
        self._queue_of(state).push(state, now_s)

    def remove(self, state: RequestState) -> None:
        """The request waits no longer, if it did."""
        self._queue_of(state).remove(state.request.request_id)

    def take_over(self, before: "Queues", now_s: float) -> None:
        """Those who wait there wait here from now on: in the same queues, where they are the same, else as they
        came.
        """
        moved: list[RequestState] = []
        for name, queue in before._queues.items():
            if name in self._queues and self._queues[name].order is queue.order:
                self._queues[name] = queue
                continue
            moved += queue.states.values()
            if name in self._queues:
                self._queues[name].drain_rate = queue.drain_rate
        for state in sorted(moved, key=lambda each: each.request.arrival_s):
            self.push(state, now_s)

    def can_wait(self, state: RequestState, now_s: float) -> bool:
        """Whether there is a replica worth waiting for."""
        live = self._access.live(state.stage, state.request.lane, self._fleet, now_s)
        failed = state.failed_replicas
        return bool(live) if not failed else any(each.replica_id not in failed for each in live)

    def moves(self, stage: Role, now_s: float) -> Iterator[Move]:
        """Who need not wait any longer; what is done about each counts before the next is looked at."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            queue = self._queues[name]
            if queue.states:
                yield from self._moves_of(queue, now_s)

    def blocked(self, stage: Role, now_s: float) -> Iterator[Queue]:
        """Lines of a stage whose heads wait for room, and for nothing else."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            queue = self._queues[name]
            if queue.states and name not in self.held and self._access.room_for(name, self._fleet, now_s) is None:
                yield queue

    def _moves_of(self, queue: Queue, now_s: float) -> Iterator[Move]:
        passed_over: list[RequestState] = []
        while queue.states and (room := self._access.room_for(queue.name, self._fleet, now_s)) is not None:
            verdict = self._may_start(queue, now_s)
            if isinstance(verdict, Wait):
                self.held[queue.name] = queue.stage
                break
            state = queue.pop(now_s)
            if isinstance(verdict, Reject):
                yield state, verdict
                continue
            if state.failed_replicas:
                room = self._without_failed(state, now_s)
                if not room and self.can_wait(state, now_s):
                    passed_over.append(state)
                    continue
            queue.drain_rate.moves(state.request.geometry.work_s(queue.stage), now_s)
            yield state, room
        self._put_back(queue, passed_over, now_s)

    def _may_start(self, queue: Queue, now_s: float) -> StartDecision:
        """Asked before anything is spent on the request that is next."""
        if self._start is None:
            return ADMIT
        self.held.pop(queue.name, None)
        state = queue.peek(now_s)
        if state.num_sent:
            return ADMIT
        return self._start(state.request, self.backlog(state.request, state.plan, now_s), now_s)

    def _put_back(self, queue: Queue, passed_over: list[RequestState], now_s: float) -> None:
        """The room is where they have failed before: they keep their places in front of the others."""
        if passed_over:
            passed_over += [queue.pop(now_s) for _ in range(len(queue.states))]
        for state in passed_over:
            queue.push(state, now_s)

    def _without_failed(self, state: RequestState, now_s: float) -> Candidates:
        return self._access.with_room(state.stage, state.request.lane, self._fleet, now_s, state.failed_replicas)

    def _queue_of(self, state: RequestState) -> Queue:
        return self._queues[self._access.queue_of(state.stage, state.request.lane)]

    def gauges(self, now_s: float) -> dict[str, float]:
        """For metrics, by class and queue: requests that wait, their work, and how long the oldest has been there.

        ``queue_requests:<class>:<queue>``, ``queue_work_seconds:<class>:<queue>``,
        ``queue_oldest_age_seconds:<class>:<queue>``: 0 where nobody waits. Adds up when somebody asks.
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

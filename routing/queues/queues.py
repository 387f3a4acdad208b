"""Queues: where requests wait for a replica, how fast each drains, and what a request finds that joins."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from policies.candidates import CandidateList, Candidates
from policies.contracts import PolicySet, QueueingPolicy
from policies.decisions import ADMIT, Reject, StartDecision, Wait
from policies.signals import permit_of
from policies.views import Priority, RequestView, Role
from routing.fleet.first_token import FirstTokenEstimator
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess, LaneFleet
from routing.queues.backlog import Backlog
from routing.queues.elsewhere import WaitingElsewhere, WaitingHere
from routing.queues.homes import ANYWHERE, HomeFinder, Orders
from routing.request.effects import Record
from routing.request.request import Request
from routing.request.stages import Plan

NOWHERE = CandidateList(())
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


class Queue:
    """One queue, and what there is to say about the requests in it.

    Args:
        name: Of the queue.
        stage: What its requests wait for.
        order: The policy that puts them in order.
        another: Makes one more that is like it, for those that wait for one replica.
        has_homes: Whether some do.
        is_told: Whether other gateways are told of it.

    Attributes:
        waiting: Its requests by id, the one that has waited longest first.
        work_s: Work of their stage, in service-seconds.
        kv_tokens: KV tokens that they are expected to hold at their longest.
        drain_rate: How fast the queue moves.
        is_held: Whether admission kept its head from starting when it was last asked.
        here: What waits for whichever replica has room first, if other gateways are told.
        elsewhere: The same at other gateways.
        orders: The policies, by the replica that their requests wait for.
    """

    def __init__(
        self,
        name: str,
        stage: Role,
        order: QueueingPolicy,
        another: Callable[[], QueueingPolicy],
        *,
        has_homes: bool,
        is_told: bool,
    ) -> None:
        self.name = name
        self.stage = stage
        self.has_homes = has_homes
        self.is_held = False
        self.work_s = 0.0
        self.kv_tokens = 0
        self.drain_rate = DrainRate()
        self.waiting: dict[str, Request] = {}
        self.is_told = is_told
        self.here = WaitingHere()
        self.elsewhere = WaitingElsewhere()
        self._num_of = dict.fromkeys(Priority, 0)
        self.orders = Orders(order, another)

    def push(self, request: Request, now_s: float) -> None:
        """A request is enqueued, with those that have the same home."""
        view = request.view
        if not self.waiting:
            self.drain_rate.begins(now_s)
        work_s = view.geometry.work_s(self.stage)
        self.waiting[view.request_id] = request
        self.work_s += work_s
        self.kv_tokens += view.kv_tokens
        self._num_of[view.priority] += 1
        self.orders.push(request, work_s, now_s)
        if self.is_told and not request.home:
            self.here.add(_due_s(view), view.geometry.uncached_tokens)

    def next_home(self, room: Candidates, now_s: float) -> str | None:
        """Where the request waits that is next for these replicas, or for any if there are none: the one whose first
        token is due first of those that are first in their orders; ``None``: all wait for other replicas.
        """
        if not self.has_homes:
            return ANYWHERE
        due = [(_due_s(order.peek(now_s)), home) for home, order in self.orders.with_room(room)]
        return min(due)[1] if due else None

    def head(self, now_s: float) -> Request:
        """The request that is next, whichever replica it waits for."""
        return self.peek(now_s, self.next_home(NOWHERE, now_s) or ANYWHERE)

    def peek(self, now_s: float, home: str = ANYWHERE) -> Request:
        """The request that is next of those that wait there."""
        return self.waiting[self.orders.at(home).policy.peek(now_s).request_id]

    def pop(self, now_s: float, home: str = ANYWHERE) -> Request:
        """The next one leaves."""
        request = self.waiting[self.orders.at(home).policy.pop(now_s).request_id]
        self._leave(request)
        return request

    def remove(self, request: Request) -> bool:
        """A request leaves without a replica, if it is here."""
        is_here = request.view.request_id in self.waiting and self.orders.at(request.home).policy.remove(request.view)
        if is_here:
            self._leave(request)
        return is_here

    def oldest_arrival_s(self, now_s: float) -> float:
        """When the request that has waited longest came in; now, when none waits."""
        return next(iter(self.waiting.values())).view.arrival_s if self.waiting else now_s

    def num_at_least(self, priority: Priority) -> int:
        """How many wait of a class and of those above it."""
        return sum(num for each, num in self._num_of.items() if each.rank <= priority.rank)

    def elsewhere_ahead(self, request: RequestView, now_s: float) -> int:
        """Prompt tokens at other gateways that go before a request: those that are due earlier, or all of them where
        another order counts.
        """
        if self.orders.anywhere.is_ordered:
            return self.elsewhere.tokens_before(_due_s(request), now_s)
        return self.elsewhere.tokens_at(now_s)

    def by_class(self) -> dict[Priority, list[RequestView]]:
        """Requests by class; O(n)."""
        by_class: dict[Priority, list[RequestView]] = {priority: [] for priority in Priority}
        for request in self.waiting.values():
            by_class[request.view.priority].append(request.view)
        return by_class

    def _leave(self, request: Request) -> None:
        view = request.view
        work_s = view.geometry.work_s(self.stage)
        del self.waiting[view.request_id]
        if self.is_told and not request.home:
            self.here.add(_due_s(view), -view.geometry.uncached_tokens)
        self.orders.leave(request, work_s)
        self.work_s = self.work_s - work_s if self.waiting else 0.0
        self.kv_tokens -= view.kv_tokens
        self._num_of[view.priority] -= 1


def _due_s(request: RequestView) -> float:
    return request.first_token_by_s or request.deadline_s


Move = tuple[Request, Candidates | Reject]
"""A request that waits no longer: replicas that would take it (none: there is none to wait for), or a refusal."""


class QueueLoad(NamedTuple):
    """What waits in a queue: requests, their service-seconds, and how long the first of them has been there."""

    name: str
    num_waiting: int
    work_s: float
    oldest_wait_s: float


class Queues:
    """All queues of one dispatcher.

    Args:
        policies: Those that put queues in order, and the one that may keep the head of a queue from starting.
        access: Which replicas a lane may use.
        fleet: All replicas.
        first_tokens: How long first tokens take there.
        shares_news: Whether gateways tell one another what waits with them.
    """

    def __init__(
        self,
        policies: PolicySet,
        access: LaneAccess,
        fleet: Fleet,
        first_tokens: FirstTokenEstimator,
        *,
        shares_news: bool = False,
    ) -> None:
        self._access = access
        self._shares_news = shares_news
        self._fleet = fleet
        self._first_tokens = first_tokens
        self._admission = policies.admission
        self._start: Callable[[RequestView, Backlog, float, Any], StartDecision] | None
        self._start = getattr(policies.admission, "start", None)
        self._homes = HomeFinder(policies, fleet, first_tokens)
        self._queues = {name: self._queue(name, access.stage_of(name), policies) for name in policies.queues}
        self.held: dict[str, Role] = {}
        """Queues whose head admission keeps from starting until a request has ended, and their stages."""

    def _queue(self, name: str, stage: Role, policies: PolicySet) -> Queue:
        another = partial(policies.another_queue, name)
        has_homes = self._homes.has_homes(stage)
        return Queue(name, stage, policies.queues[name], another, has_homes=has_homes, is_told=self._shares_news)

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def __bool__(self) -> bool:
        for queue in self._queues.values():  # noqa: SIM110 - asked after every event; a generator would cost more
            if queue.waiting:
                return True
        return False

    def backlog(
        self, request: RequestView, plan: Plan, fleet: LaneFleet, now_s: float, home: str = ANYWHERE
    ) -> Backlog:
        """What a request finds that is to go through the stages of ``plan``, on the replicas of its lane; ``home`` is
        the one that it waits for already.
        """
        queue = self._queues[self._access.queue_of(plan[0], request.lane)]
        return Backlog(
            request,
            plan,
            queue,
            now_s,
            home=home,
            fleet=fleet,
            homes=self._homes,
            first_tokens=self._first_tokens,
            shared_kv_fraction=self._fleet.shared_kv_fraction,
        )

    def push(self, request: Request, now_s: float) -> None:
        """Enqueues a request for its stage."""
        self._enqueue(self._queue_of(request), request, now_s)

    def remove(self, request: Request) -> None:
        """The request waits no longer, if it did."""
        if self._queue_of(request).remove(request):
            self._homes.leave(request)

    def take_over(self, before: "Queues", now_s: float) -> None:
        """What waits there waits here from now on: in the same queues, where they are the same, else as it came."""
        moved: list[Request] = []
        for name, queue in before._queues.items():
            if name in self._queues and self._queues[name].orders.anywhere.policy is queue.orders.anywhere.policy:
                at_home = [each for each in queue.waiting.values() if each.home]
                moved += [each for each in at_home if queue.remove(each)]
                queue.has_homes = self._queues[name].has_homes
                self._queues[name] = queue
                continue
            moved += queue.waiting.values()
            if name in self._queues:
                self._queues[name].drain_rate = queue.drain_rate
        for request in moved:
            self._homes.leave(request)
        for request in sorted(moved, key=lambda each: each.view.arrival_s):
            self.push(request, now_s)

    def can_wait(self, request: Request, now_s: float) -> bool:
        """Whether there is a replica worth waiting for; or will be one, and its plan is the only one."""
        live = self._access.live(request.stage, request.view.lane, self._fleet, now_s)
        failed = request.failed_replicas
        if live and (not failed or any(each.replica_id not in failed for each in live)):
            return True
        if not self._access.is_expecting(request.stage, request.view.lane, self._fleet, now_s):
            return False
        return self._possible_plan(request, now_s) == request.rest_of_plan

    def replan(self, request: Request, now_s: float) -> Sequence[Record]:
        """Gives a request another plan if that is possible and what is left of its own is not; the record of that."""
        plan = self._possible_plan(request, now_s)
        return () if plan == request.rest_of_plan else (request.go_by(plan),)

    def _possible_plan(self, request: Request, now_s: float) -> Plan:
        rest, lane = request.rest_of_plan if request.can_pull(now_s) else request.plan, request.view.lane
        return self._access.possible(rest, lane, self._fleet, now_s, request.failed_replicas)

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
        if queue.has_homes:
            self._leave_lost_homes(queue, now_s)
        while queue.waiting and (room := self._access.room_for(queue.name, self._fleet, now_s)) is not None:
            home = queue.next_home(room, now_s)
            if home is None and (home := self._leave_homes(queue, room, now_s)) is None:
                break
            if self._shares_news and self._yields(queue, home, room, now_s):
                break
            verdict = self._may_start(queue, home, now_s) if room else ADMIT
            queue.is_held = isinstance(verdict, Wait)
            if queue.is_held:
                self.held[queue.name] = queue.stage
                break
            request = self._pop(queue, home, now_s)
            if isinstance(verdict, Reject):
                yield request, verdict
                continue
            where = self._where(queue, request, home, room, now_s)
            if where is None:
                passed_over += [] if request.home else [request]
                continue
            queue.drain_rate.moves(request.view.geometry.work_s(queue.stage), now_s)
            yield request, where
        self._put_back(queue, passed_over, now_s)

    def _yields(self, queue: Queue, home: str, room: Candidates, now_s: float) -> bool:
        """Whether so much waits elsewhere that is due before the next one here that it will take all the room."""
        if not room or not queue.orders.anywhere.is_ordered:
            return False
        urgent_tokens = queue.elsewhere_ahead(queue.peek(now_s, home).view, now_s)
        return urgent_tokens > 0 and urgent_tokens >= self._fleet.room_tokens(room)

    def _enqueue(self, queue: Queue, request: Request, now_s: float) -> None:
        if queue.has_homes:
            self._find_home(queue, request, now_s)
        queue.push(request, now_s)

    def _where(self, queue: Queue, request: Request, home: str, room: Candidates, now_s: float) -> Candidates | None:
        """Where a request goes that has waited at a home; ``None``: it waits on, for a replica without room."""
        if home:
            return CandidateList(each for each in room if each.replica_id == home)
        if room and queue.has_homes and self._finds_home(queue, request, room, now_s):
            return None
        if not request.failed_replicas:
            return room
        elsewhere = self._without_failed(request, now_s)
        return None if not elsewhere and self.can_wait(request, now_s) else elsewhere

    def _finds_home(self, queue: Queue, request: Request, room: Candidates, now_s: float) -> bool:
        """Whether a replica without room is worth waiting for by now, because its like have gone there meanwhile."""
        self._find_home(queue, request, now_s)
        if request.home and room.find(request.home) is None:
            queue.push(request, now_s)
            return True
        self._homes.leave(request)
        return False

    def _find_home(self, queue: Queue, request: Request, now_s: float) -> None:
        live = self._access.live(request.stage, request.view.lane, self._fleet, now_s)
        anywhere_tokens = queue.orders.anywhere.prefill_tokens + queue.elsewhere.tokens_at(now_s)
        self._homes.wait_for(request, live, anywhere_tokens, now_s)

    def _leave_lost_homes(self, queue: Queue, now_s: float) -> None:
        """Those whose home is not up any more, or ejected, are enqueued again in order."""
        for home in queue.orders.homes():
            if self._homes.is_lost(home):
                while queue.orders.num_at(home):
                    self._enqueue(queue, self._pop(queue, home, now_s), now_s)

    def _leave_homes(self, queue: Queue, room: Candidates, now_s: float) -> str | None:
        """There is room that nobody waits for: those that are first at their homes are asked again where they would
        wait. Where the first one is now that goes there; ``None``: none does.
        """
        for home in queue.orders.homes():
            request = self._pop(queue, home, now_s)
            self._enqueue(queue, request, now_s)
            if request.home != home and (not request.home or room.find(request.home) is not None):
                return request.home
        return None

    def _pop(self, queue: Queue, home: str, now_s: float) -> Request:
        request = queue.pop(now_s, home)
        if home:
            self._homes.leave(request)
        return request

    def _may_start(self, queue: Queue, home: str, now_s: float) -> StartDecision:
        """Asked before anything is spent on the request that is next."""
        if self._start is None:
            return ADMIT
        self.held.pop(queue.name, None)
        request = queue.peek(now_s, home)
        if request.num_sent:
            return ADMIT
        fleet = self._access.view(request.view, self._fleet)
        backlog = self.backlog(request.view, request.plan, fleet, now_s, home)
        return self._start(request.view, backlog, now_s, permit_of(self._admission, request.permits))

    def _put_back(self, queue: Queue, passed_over: list[Request], now_s: float) -> None:
        """The room is where they have failed before: they keep their places in front of the others."""
        if passed_over:
            passed_over += [queue.pop(now_s) for _ in range(len(queue.orders.anywhere.policy))]
        for request in passed_over:
            queue.push(request, now_s)

    def _without_failed(self, request: Request, now_s: float) -> Candidates:
        return self._access.with_room(request.stage, request.view.lane, self._fleet, now_s, request.failed_replicas)

    def _queue_of(self, request: Request) -> Queue:
        return self._queues[self._access.queue_of(request.stage, request.view.lane)]

    def waiting(self) -> Mapping[str, tuple[tuple[float, int], ...]]:
        """Prompt tokens that wait for whichever replica has room first, by queue and by when they are due."""
        return {name: queue.here.told() for name, queue in self._queues.items() if queue.waiting}

    def share(self, waiting: Mapping[str, tuple[tuple[float, int], ...]], now_s: float) -> None:
        """Takes in what waits at the other gateways."""
        for name, queue in self._queues.items():
            queue.elsewhere.hear(waiting.get(name, ()), now_s)

    def loads(self, now_s: float) -> Iterator[QueueLoad]:
        """What waits in each queue."""
        for name, queue in self._queues.items():
            oldest_wait_s = now_s - queue.oldest_arrival_s(now_s)
            yield QueueLoad(name, len(queue.waiting), queue.work_s, oldest_wait_s)

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

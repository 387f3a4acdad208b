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
from routing.request.state import RequestLife
from routing.sizing.geometry import ServiceRates

MEMORY_S = 10.0
"""Of busy time, after which what was seen counts for little."""


class Pace:
    """Watches one line.

    Only work that had to wait counts, and only time in which somebody waited: a line that is empty says nothing about
    how fast it could move. Until there is something to go by, one service-second a second for each replica.
    """

    def __init__(self) -> None:
        self._work_s = 0.0
        self._busy_s = 0.0
        self._unknown_s = 1.0
        self._since_s = math.inf

    def begins(self, now_s: float) -> None:
        """The line is not empty any more."""
        self._since_s = now_s

    def moves(self, work_s: float, now_s: float) -> None:
        """Somebody has left the line for a replica."""
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


class Line:
    """One queue, and what there is to say about those who wait in it.

    Args:
        name: Of the queue.
        stage: What they wait for.
        queue: Puts them in order.

    Attributes:
        lives: Those who wait, by request id, the one that has waited longest first.
        work_s: Their work.
        kv_tokens: KV tokens that they are expected to hold at their longest.
        pace: How fast the line moves.
        queue: What puts them in order.
    """

    def __init__(self, name: str, stage: Role, queue: QueueingPolicy) -> None:
        self.name = name
        self.stage = stage
        self.work_s = 0.0
        self.kv_tokens = 0
        self.pace = Pace()
        self.lives: dict[str, RequestLife] = {}
        self._num_of = dict.fromkeys(Priority, 0)
        self.queue = queue
        self._work_ahead_s: Callable[[RequestView], float] | None = getattr(queue, "work_ahead_s", None)

    def push(self, life: RequestLife, now_s: float) -> None:
        """Somebody joins."""
        request = life.request
        if not self.lives:
            self.pace.begins(now_s)
        self.lives[request.request_id] = life
        self.work_s += request.geometry.work_s(self.stage)
        self.kv_tokens += request.kv_tokens
        self._num_of[request.priority] += 1
        self.queue.push(request, now_s)

    def peek(self, now_s: float) -> RequestLife:
        """Who is next."""
        return self.lives[self.queue.peek(now_s).request_id]

    def pop(self, now_s: float) -> RequestLife:
        """The next one leaves."""
        life = self.lives[self.queue.pop(now_s).request_id]
        self._leave(life)
        return life

    def remove(self, request_id: str) -> None:
        """Somebody gives up, if there."""
        life = self.lives.get(request_id)
        if life is not None and self.queue.remove(request_id):
            self._leave(life)

    def ahead_s(self, request: RequestView) -> float:
        """Work of those that would go before a request."""
        return self.work_s if self._work_ahead_s is None else self._work_ahead_s(request)

    def oldest_arrival_s(self, now_s: float) -> float:
        """When the one that has waited longest came in; now, when nobody waits."""
        return next(iter(self.lives.values())).request.arrival_s if self.lives else now_s

    def num_at_least(self, priority: Priority) -> int:
        """How many wait of a class and of those above it."""
        return sum(num for each, num in self._num_of.items() if each.rank <= priority.rank)

    def by_class(self) -> dict[Priority, list[RequestView]]:
        """Who waits, by class; O(n)."""
        waiting: dict[Priority, list[RequestView]] = {priority: [] for priority in Priority}
        for life in self.lives.values():
            waiting[life.request.priority].append(life.request)
        return waiting

    def _leave(self, life: RequestLife) -> None:
        request = life.request
        del self.lives[request.request_id]
        self.work_s = self.work_s - request.geometry.work_s(self.stage) if self.lives else 0.0
        self.kv_tokens -= request.kv_tokens
        self._num_of[request.priority] -= 1


Move = tuple[RequestLife, Candidates | Reject]
"""A request that waits no longer: replicas that would take it (none: there is nobody to wait for), or a refusal."""


class WaitingLines:
    """All lines of one dispatcher.

    Args:
        policies: Those that put queues in order, and the one that may keep the head of a line from starting.
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
        self._lines = {name: Line(name, access.stage_of(name), queue) for name, queue in queues}
        self.held: dict[str, Role] = {}
        """Lines whose head admission keeps from starting until a request has ended, and their stages."""

    def __len__(self) -> int:
        return sum(len(line.lives) for line in self._lines.values())

    def backlog(self, request: RequestView, plan: Plan, now_s: float) -> Backlog:
        """What a request finds that is to go through the stages of ``plan``."""
        line = self._lines[self._access.queue_of(plan[0], request.lane)]
        return Backlog(request, plan, line, now_s, fleet=self._access.view(request, self._fleet), rates=self._rates)

    def push(self, life: RequestLife, now_s: float) -> None:
        """Lines a request up for its stage."""
        self._line_of(life).push(life, now_s)

    def remove(self, life: RequestLife) -> None:
        """The request waits no longer, if it did."""
        self._line_of(life).remove(life.request.request_id)

    def take_over(self, before: "WaitingLines", now_s: float) -> None:
        """Those who wait there wait here from now on: in the same lines, where they are the same, else as they came."""
        moved: list[RequestLife] = []
        for name, line in before._lines.items():
            if name in self._lines and self._lines[name].queue is line.queue:
                self._lines[name] = line
                continue
            moved += line.lives.values()
            if name in self._lines:
                self._lines[name].pace = line.pace
        for life in sorted(moved, key=lambda each: each.request.arrival_s):
            self.push(life, now_s)

    def can_wait(self, life: RequestLife, now_s: float) -> bool:
        """Whether there is a replica worth waiting for."""
        live = self._access.live(life.stage, life.request.lane, self._fleet, now_s)
        failed = life.failed_replicas
        return bool(live) if not failed else any(each.replica_id not in failed for each in live)

    def moves(self, stage: Role, now_s: float) -> Iterator[Move]:
        """Who need not wait any longer; what is done about each counts before the next is looked at."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            line = self._lines[name]
            if line.lives:
                yield from self._moves_of(line, now_s)

    def blocked(self, stage: Role, now_s: float) -> Iterator[Line]:
        """Lines of a stage whose heads wait for room, and for nothing else."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            line = self._lines[name]
            if line.lives and name not in self.held and self._access.room_for(name, self._fleet, now_s) is None:
                yield line

    def _moves_of(self, line: Line, now_s: float) -> Iterator[Move]:
        passed_over: list[RequestLife] = []
        while line.lives and (room := self._access.room_for(line.name, self._fleet, now_s)) is not None:
            verdict = self._may_start(line, now_s)
            if isinstance(verdict, Wait):
                self.held[line.name] = line.stage
                break
            life = line.pop(now_s)
            if isinstance(verdict, Reject):
                yield life, verdict
                continue
            if life.failed_replicas:
                room = self._without_failed(life, now_s)
                if not room and self.can_wait(life, now_s):
                    passed_over.append(life)
                    continue
            line.pace.moves(life.request.geometry.work_s(line.stage), now_s)
            yield life, room
        self._put_back(line, passed_over, now_s)

    def _may_start(self, line: Line, now_s: float) -> StartDecision:
        """Asked before anything is spent on the request that is next."""
        if self._start is None:
            return ADMIT
        self.held.pop(line.name, None)
        life = line.peek(now_s)
        if life.num_sent:
            return ADMIT
        return self._start(life.request, self.backlog(life.request, life.plan, now_s), now_s)

    def _put_back(self, line: Line, passed_over: list[RequestLife], now_s: float) -> None:
        """The room is where they have failed before: they keep their places in front of the others."""
        if passed_over:
            passed_over += [line.pop(now_s) for _ in range(len(line.lives))]
        for life in passed_over:
            line.push(life, now_s)

    def _without_failed(self, life: RequestLife, now_s: float) -> Candidates:
        return self._access.with_room(life.stage, life.request.lane, self._fleet, now_s, life.failed_replicas)

    def _line_of(self, life: RequestLife) -> Line:
        return self._lines[self._access.queue_of(life.stage, life.request.lane)]

    def gauges(self, now_s: float) -> dict[str, float]:
        """For metrics, by class and line: requests that wait, their work, and how long the oldest has been there.

        ``queue_requests:<class>:<line>``, ``queue_work_seconds:<class>:<line>``,
        ``queue_oldest_age_seconds:<class>:<line>``: 0 where nobody waits. Adds up when somebody asks.
        """
        gauges = {}
        for name, line in self._lines.items():
            for priority, waiting in line.by_class().items():
                oldest_s = min((each.arrival_s for each in waiting), default=now_s)
                gauges[f"queue_requests:{priority}:{name}"] = float(len(waiting))
                gauges[f"queue_work_seconds:{priority}:{name}"] = sum(
                    each.geometry.work_s(line.stage) for each in waiting
                )
                gauges[f"queue_oldest_age_seconds:{priority}:{name}"] = now_s - oldest_s
        return gauges

"""Policies and replicas for tests; the policies are named by import path, as anybody's own would be."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from policies.attempt_views import AttemptView, InFlightView, LostAttempt, SlotsView
from policies.candidates import CandidateList, Candidates
from policies.contracts import Need, Rng
from policies.decisions import (
    ADMIT,
    AS_ASKED,
    UNLIMITED_ATTEMPTS,
    UNLIMITED_TOKENS,
    WAIT,
    Admit,
    Again,
    Allow,
    Degradation,
    Eject,
    EjectionReason,
    Keep,
    Reason,
    Reject,
    RetryDecision,
    StartDecision,
)
from policies.signals import SIGNAL_TYPES, Completed, Ended, Failed, Signal, Started
from policies.views import BacklogView, FleetView, Priority, ReplicaView, RequestView, Role
from routing.request.events import FirstTokenReceived, ReplicaInfo
from routing.request.stages import DISAGGREGATED, UNIFIED, Plan

NOT_CALLABLE = "nothing that makes a policy"


class Undemanding:
    """A policy that needs nothing of its host, and learns of nothing."""

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()


class HedgeAfter(Undemanding):
    """Hedges every attempt after a fixed time."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.FIRST_TOKEN})

    def __init__(self, *, delay_s: float) -> None:
        self._delay_s = delay_s

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        return self._delay_s

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return candidates.least_work_left()


class TieAfter(HedgeAfter):
    """The same, with second attempts that share a claim with the first."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.CLAIMS})


class RetryAfter(Undemanding):
    """Tries every request again after a fixed time."""

    def __init__(self, *, after_s: float) -> None:
        self._after_s = after_s
        self.asked: list[LostAttempt] = []

    def decide(self, request: RequestView, lost: LostAttempt, now_s: float) -> RetryDecision:
        self.asked.append(lost)
        return Again(after_s=self._after_s)


class HedgeAnywhere(HedgeAfter):
    """Names what the test says as the replica for a second attempt, candidate or not."""

    def __init__(self, *, delay_s: float, what: str) -> None:
        super().__init__(delay_s=delay_s)
        self._what = what

    def target(self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float) -> Any:
        answers = {"nothing": None, "its own": attempt.replica, "id": candidates[0].replica_id}
        return answers[self._what]


class EjectAfterErrors(Undemanding):
    """Ejects a replica for ten seconds after each engine error; each attempt that completes there allows one more.

    Args:
        what: ``slowly``; ``in full``, without a bound on those that are back; ``for tokens`` and ``for first tokens``,
            as if it were slow; or how an answer is wrong: ``stranger``, ``for ever``, ``no attempts``.
    """

    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Failed, Completed})

    def __init__(self, *, what: str = "slowly") -> None:
        wrong: dict[str, dict[str, Any]] = {
            "stranger": {"replica_id": "nobody"},
            "for ever": {"for_s": math.inf},
            "no attempts": {"attempts_then": 0},
            "in full": {"attempts_then": UNLIMITED_ATTEMPTS},
            "for tokens": {"reason": EjectionReason.TOKENS},
            "for first tokens": {"reason": EjectionReason.FIRST_TOKENS},
        }
        self._changes = wrong.get(what, {})
        self._is_slow = what == "slowly"
        self._failed: list[str] = []
        self._completed: list[str] = []
        self._allowed: dict[str, int] = {}

    def decide(self, pool: Sequence[ReplicaView], now_s: float) -> Sequence[Eject | Allow]:
        failed, completed, up = self._failed, self._completed, {each.replica_id for each in pool}
        self._failed, self._completed = [], []
        return [self._eject(each) for each in failed if each in up] + [
            self._allow(each) for each in completed if each in up and each in self._allowed
        ]

    def _eject(self, replica_id: str) -> Eject | Allow:
        if self._is_slow:
            self._allowed[replica_id] = 1
        right = {"replica_id": replica_id, "reason": EjectionReason.FAILURES, "for_s": 10.0}
        return Eject(**{**right, **self._changes})

    def _allow(self, replica_id: str) -> Eject | Allow:
        self._allowed[replica_id] += 1
        return Allow(replica_id=replica_id, max_attempts=self._allowed[replica_id])

    def observe(self, signal: Failed | Completed) -> None:
        if isinstance(signal, Completed):
            self._completed.append(signal.replica_id)
        elif signal.reason is Reason.ENGINE_ERROR:
            self._failed.append(signal.replica_id)


class PickAnything(Undemanding):
    """Picks what the test says, candidate or not; ``first`` is the first replica that it was ever offered."""

    def __init__(self, *, what: str) -> None:
        self._what = what
        self._first: ReplicaView | None = None

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> object:
        self._first = self._first or candidates[0]
        answers = {
            "first": self._first,
            "nothing": None,
            "id": candidates[0].replica_id,
            "copy": FakeReplica(replica_id=candidates[0].replica_id),
        }
        return answers[self._what]


class FailsWhenMade(Undemanding):
    """Can't be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such table")


class KeepAndRecord(Undemanding):
    """Keeps every request, and every signal."""

    consumes: ClassVar[frozenset[type[Signal]]] = SIGNAL_TYPES

    def __init__(self) -> None:
        self.signals: list[Signal] = []

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Keep:
        return Keep()

    def observe(self, signal: Signal) -> None:
        self.signals.append(signal)

    def shed_fraction(self, now_s: float) -> float:
        return 0.0


class KeepAndRecordFailures(KeepAndRecord):
    """The same, and learns of failures alone."""

    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Failed})


class ShedAll(Undemanding):
    """Gives every request up."""

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Reject:
        return Reject(reason=Reason.SHED, retry_after_s=7.0)

    def shed_fraction(self, now_s: float) -> float:
        return 1.0


class AdmitNone(Undemanding):
    """Lets nothing in, for a reason."""

    def __init__(self, *, reason: str = Reason.ADMISSION_REJECTED) -> None:
        self._reason = Reason(reason)

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Reject:
        return Reject(reason=self._reason, retry_after_s=3.0)


class RefuseSheddable(Undemanding):
    """Lets in what matters."""

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit | Reject:
        if request.priority is Priority.SHEDDABLE:
            return Reject(reason=Reason.QUEUE_FULL, retry_after_s=8.0)
        return ADMIT


class ForgotConsumes:
    """Wants to learn, and does not say of what."""

    requires: ClassVar[frozenset[Need]] = frozenset()

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Keep:
        return Keep()

    def observe(self, signal: Signal) -> None:
        raise AssertionError("nobody knows what to call this with")

    def shed_fraction(self, now_s: float) -> float:
        return 0.0


class ConsumesNothing(ForgotConsumes):
    """Has an ``observe`` that nobody would ever call."""

    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()


class ConsumesByName(ForgotConsumes):
    """Names a signal by its name."""

    consumes: ClassVar[frozenset[str]] = frozenset({"Completed"})


class ConsumesAnEvent(ForgotConsumes):
    """Takes the event that tells the dispatcher of a first token for the signal that tells policies."""

    consumes: ClassVar[frozenset[type[object]]] = frozenset({FirstTokenReceived})


class CannotObserve(Undemanding):
    """Consumes a signal, and cannot take it in."""

    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Completed})

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Keep:
        return Keep()

    def shed_fraction(self, now_s: float) -> float:
        return 0.0


class HedgeHalf(Undemanding):
    """Hedges half of all attempts, at once; its own random stream says which."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.FIRST_TOKEN})

    def __init__(self, *, rng: Rng) -> None:
        self._rng = rng

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        return 0.0 if self._rng.random() < 0.5 else math.inf

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return candidates.least_work_left()


class TieHalf(HedgeHalf):
    """The same, with second attempts that share a claim with the first."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.CLAIMS})


class HedgeAsItPleases(HedgeHalf):
    """Draws from a stream that no host gave it, which is against the rules."""

    draws: ClassVar[Iterator[int]] = count()

    def __init__(self) -> None:
        """Takes nothing."""

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        return float(next(self.draws))


class RaisesAtTheThird(Undemanding):
    """Has a bug that shows with the third request."""

    def __init__(self) -> None:
        self._num_seen = 0

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        self._num_seen += 1
        if self._num_seen == 3:
            raise ZeroDivisionError("a bug")
        return Admit()


class LongPromptsApart:
    """Plans by the prompt's length alone."""

    roles: ClassVar[frozenset[Role]] = frozenset(Role)

    def plan(self, request: RequestView, fleet: FleetView, now_s: float) -> Plan:
        return DISAGGREGATED if request.prompt_tokens > 1000 else UNIFIED


class ScriptedRng:
    """Gives the integers it was told to give."""

    def __init__(self, *draws: int) -> None:
        self._draws = list(draws)

    def random(self) -> float:
        raise AssertionError("no float was scripted")

    def randrange(self, stop: int, /) -> int:
        draw = self._draws.pop(0)
        assert 0 <= draw < stop
        return draw


@dataclass(frozen=True, kw_only=True)
class FakeReplica:
    """A replica that a policy can look at."""

    replica_id: str
    role: Role = Role.UNIFIED
    num_ongoing_requests: int = 0
    max_ongoing_requests: int = 8
    pool: str = "unified"
    prefill_tokens: int = 0
    waiting_tokens: int = 0
    waiting_tokens_elsewhere: int = 0
    kv_tokens: int = 0
    kv_capacity_tokens: int = 10_000
    kv_cache_usage: float = 0.0
    failure_domain: str = ""
    place: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    max_adapters: int = 0

    @property
    def work_tokens(self) -> int:
        return self.prefill_tokens + self.kv_tokens

    def has_slot_for(self, adapter: str) -> bool:
        return not adapter or adapter in self.adapters or len(self.adapters) < self.max_adapters

    def has_loaded(self, adapter: str) -> bool:
        return not adapter or adapter in self.adapters


@dataclass(frozen=True, kw_only=True)
class FakeAttempt:
    """An attempt that a policy can look at."""

    replica: ReplicaView
    attempt_id: str = "q.0"
    stage: Role = Role.UNIFIED
    prefill_tokens: int = 100
    sent_at_s: float = 0.0
    expected_s: float = 0.1


@dataclass(frozen=True, kw_only=True)
class FakeFleet:
    """A fleet that a policy can look at."""

    replicas: Sequence[ReplicaView] = field(default_factory=tuple)

    def live(self, stage: Role, now_s: float) -> Sequence[ReplicaView]:
        return [each for each in self.replicas if each.role is stage]

    def with_room(self, stage: Role, now_s: float) -> Candidates:
        live = self.live(stage, now_s)
        return CandidateList(each for each in live if each.num_ongoing_requests < each.max_ongoing_requests)


@dataclass(frozen=True, kw_only=True)
class FakeBacklog:
    """What a request finds before it, as the test says."""

    stage: Role = Role.UNIFIED
    num_waiting: int = 0
    waiting_s: float = 0.0
    ahead_s: float = 0.0
    oldest_arrival_s: float = 0.0
    num_replicas: int = 1
    ongoing_s: float = 0.0
    num_ongoing: int = 0
    work_per_s: float = 1.0
    kv_tokens: int = 0
    kv_capacity_tokens: int = 100_000
    waiting_kv_tokens: int = 0
    shared_kv_fraction: float = 0.0
    first_token_s: float = 0.0

    def first_token_behind_s(self, work_s: float) -> float:
        return self.first_token_s + work_s / self.num_replicas


def a_request(request_id: str = "q", **terms: Any) -> RequestView:
    """A request that arrives at 0 s and has a minute; its other terms by their names."""
    usual = {"prompt_tokens": 100, "max_output_tokens": 50, "arrival_s": 0.0, "deadline_s": 60.0}
    return RequestView(request_id=request_id, **{**usual, **terms})


def replica_info(
    replica_id: str, role: Role = Role.UNIFIED, *, pool: str = "", slots: int = 8, failure_domain: str = ""
) -> ReplicaInfo:
    """A replica as a host announces it, of the pool that has its role's name unless it is said."""
    return ReplicaInfo(
        replica_id=replica_id,
        role=role,
        pool=pool or role.value,
        max_ongoing_requests=slots,
        kv_capacity_tokens=10_000,
        failure_domain=failure_domain,
    )


class StartsOneAtATime(Undemanding):
    """Lets everything in, and lets a request start when no other is under way; those with empty prompts never."""

    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Started, Ended})

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self._under_way: set[str] = set()

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        self.seen.append((request.request_id, backlog.num_waiting, backlog.num_ongoing))
        return ADMIT

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: object) -> StartDecision:
        if request.max_output_tokens == 1:
            return Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=4.0)
        return WAIT if self._under_way else ADMIT

    def observe(self, signal: Started | Ended) -> None:
        if isinstance(signal, Started):
            self._under_way.add(signal.request.request_id)
        else:
            self._under_way.discard(signal.request.request_id)


class DegradeTo(Undemanding):
    """Answers everything that is not critical as the test says."""

    def __init__(
        self,
        *,
        max_output_tokens: int = UNLIMITED_TOKENS,
        output_time_limit_s: float = math.inf,
        may_use_cache: bool = False,
        lane: str = "",
    ) -> None:
        self._answer = Degradation(
            max_output_tokens=max_output_tokens,
            output_time_limit_s=output_time_limit_s,
            may_use_cache=may_use_cache,
            lane=lane,
        )

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        return AS_ASKED if request.priority is Priority.CRITICAL else self._answer


class AdmitShort(Undemanding):
    """Lets in what is expected to have short answers, going by the request as it is shown here."""

    def __init__(self, *, tokens: int) -> None:
        self._tokens = tokens

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit | Reject:
        if request.geometry.output_tokens > self._tokens or request.max_output_tokens > self._tokens:
            return Reject(reason=Reason.QUEUE_FULL, retry_after_s=1.0)
        return ADMIT


class NamesEverybody(Undemanding):
    """A preemption policy that stops all that can be stopped."""

    def victims(self, request: RequestView, num_wanted: int, slots: SlotsView, now_s: float) -> Sequence[InFlightView]:
        return tuple(slots.stoppable())


class NamesOneTwice(NamesEverybody):
    """One that names the first one twice."""

    def victims(self, request: RequestView, num_wanted: int, slots: SlotsView, now_s: float) -> Sequence[InFlightView]:
        first = next(slots.stoppable())
        return first, first

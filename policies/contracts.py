"""The protocols that a policy implements. A new policy is one class that has one of these shapes.

Rules that all of them keep: synchronous, no I/O, no clock (time is an argument, float seconds, monotonic), no ambient
randomness (an :class:`Rng` is an argument of the constructor), no logging. A policy keeps its own state; one that
learns names the signals that it wants in ``consumes`` and gets them, and no others, through ``observe``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, cast

from policies.attempt_views import AttemptView, InFlightView, LostAttempt, SlotsView
from policies.candidates import Candidates
from policies.decisions import (
    AdmissionDecision,
    Degradation,
    EjectionDecision,
    RetryDecision,
    SheddingDecision,
    StartDecision,
)
from policies.load_reports import AdmissionThresholds, LoadReport
from policies.pool_views import ScalingView
from policies.signals import Permits, RequestSignal, Signal, permit_of, with_permit
from policies.views import BacklogView, FleetView, ReplicaView, RequestView, Role


class Need(StrEnum):
    """What a policy must be given to work; a host refuses at start-up to run a policy whose needs it can't meet."""

    LOCAL_WORK = "local_work"
    REPLICA_REPORTS = "replica_reports"
    FIRST_TOKEN = "first_token"
    GEOMETRY = "geometry"
    PREFIXES = "prefixes"
    SERVICE_RATES = "service_rates"
    RESPONSE_CACHE = "response_cache"
    LOAD_COORDINATOR = "load_coordinator"
    CLAIMS = "claims"
    ENGINE_PRIORITY = "engine_priority"


class Rng(Protocol):
    """The randomness a policy may use; ``random.Random`` has this shape."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """An integer in [0, stop)."""
        ...


class Policy(Protocol):
    """What every policy has."""

    requires: ClassVar[frozenset[Need]]
    """What a host must supply."""
    consumes: ClassVar[frozenset[type[Signal]]]
    """Types of the signals that it learns from; empty for a policy that has no ``observe``."""


class Learner(Policy, Protocol):
    """What a policy has whose ``consumes`` is not empty."""

    def observe(self, signal: Signal) -> None:
        """Learns from what happened to an attempt; called with signals of the types in ``consumes`` only."""
        ...


class AdmissionPolicy(Policy, Protocol):
    """Answers: may this request come in?

    One that is also asked at the other end of the queue has the methods of :class:`StartPolicy` as well.
    """

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision:
        """At intake, before anything was spent on the request."""
        ...


class StartPolicy(Protocol):
    """Answers: now that a replica has room for this request, may it start?"""

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: Any) -> StartDecision:
        """At the head of its queue, before it is sent to the first stage of its plan; with the permit of ``decide``.

        Asked again after a ``Wait`` when a request has ended; what is refused has cost nothing but its wait.
        """
        ...


class DegradationPolicy(Policy, Protocol):
    """Answers: how may this request be answered more cheaply?

    One that leaves a request as it is answers :data:`policies.decisions.AS_ASKED`.
    """

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        """Before shedding and admission, which judge what is left of the request."""
        ...


class SheddingPolicy(Policy, Protocol):
    """Answers: is this request among those that the whole fleet gives up now?

    One whose gateways act as one has the methods of :class:`CoordinatedShedding` as well.
    """

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> SheddingDecision:
        """Before admission, which judges what is left."""
        ...

    def shed_fraction(self, now_s: float) -> float:
        """The part of all work that is given up now, 0 to 1; while there is some, nothing is hedged."""
        ...


class CoordinatedShedding(Protocol):
    """Has its gateways' load reported to a load coordinator, and goes by what that says."""

    @property
    def period_s(self) -> float:
        """Between two reports, seconds."""
        ...

    def report(self, now_s: float) -> LoadReport:
        """What this gateway has seen since it was last asked."""
        ...

    def take_in(self, thresholds: AdmissionThresholds, now_s: float) -> None:
        """The load coordinator has answered; what is older than what is known does not count."""
        ...


class PreemptionPolicy(Policy, Protocol):
    """Answers: which sheddable requests in flight are preempted for those that wait?"""

    def victims(self, request: RequestView, num_wanted: int, slots: SlotsView, now_s: float) -> Sequence[InFlightView]:
        """Of ``slots.stoppable()``, at most ``num_wanted``: so many wait that matter as much as ``request``, or more.

        ``request`` is next in its queue, is not sheddable itself, and finds no room.
        """
        ...


class HedgingPolicy(Policy, Protocol):
    """Answers: how long to wait for an attempt's first token before a second one is sent, and where does that go?

    Asked of attempts that compute a prompt. One that pulls a prompt's KV is never hedged, nor is a hedge.

    One that requires ``Need.CLAIMS`` has its second attempts tied to the first: the two share an execution claim, the
    one whose turn comes first in its replica's queue computes the prompt, and the other ends as superseded, with
    nothing done.
    """

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        """Seconds from now, when the attempt has just been sent; ``math.inf`` means never."""
        ...

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        """When that time is over and there is no first token: one of ``candidates``, or none, if it isn't worth it now.

        ``candidates`` is never empty, has no replica that has the request already and, as long as there are others,
        none of the failure domain that the attempt is in.
        """
        ...


class RetryPolicy(Policy, Protocol):
    """Answers: an attempt was lost before anybody had a token of it; is the request tried again, and when?"""

    def decide(self, request: RequestView, lost: LostAttempt, now_s: float) -> RetryDecision:
        """Asked once for each such attempt that has no other beside it; ``request`` is still wanted."""
        ...


class EjectionPolicy(Policy, Protocol):
    """Answers: which replicas get nothing for a while, and how much do those get that come back?

    Each gateway asks its own, which knows what this gateway has seen. One that consumes nothing is never asked.
    """

    def decide(self, pool: Sequence[ReplicaView], now_s: float) -> Sequence[EjectionDecision]:
        """What is new of the replicas of a pool; mostly nothing.

        Asked after an attempt there has given its first token, finished or failed. ``pool`` is never empty and has
        all that are up, those that are out included, in order of replica id. An ejection that would leave nobody is
        not carried out, and when all others have gone, whoever is out comes back at once: the ``Dispatched`` of an
        attempt to it is how the policy gets to know.
        """
        ...


class Balancer(Policy, Protocol):
    """Answers: which of these replicas takes the attempt?

    One for which some replicas are worth waiting for also has
    ``home(request, live, anywhere_tokens, now_s) -> ReplicaView | None``: the one of ``live``, whether it has room or
    not, that a request is to wait for in a queue of its own; ``None``: it waits for whichever has room first, with
    others whose uncached prompts come to ``anywhere_tokens``. Asked when the request is enqueued, when admission looks
    at what it would find, and again at the head of that queue while another replica has room that nobody uses. Queueing
    policies with signals to learn from have one queue for all, and it is not asked.
    """

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        """One of ``candidates``, which is never empty and is sorted by replica id."""
        ...


class QueueingPolicy(Policy, Protocol):
    """Answers: which of the waiting requests goes next? Every queue has a policy of its own.

    One whose order is not that of arrival also has ``work_ahead_s(request) -> float``: service-seconds
    (``request.geometry.work_s``) of those waiting that would go before a request if it stood here. Without it, all do.
    A factory that takes ``stage`` is given the stage that its requests wait for.
    """

    def push(self, request: RequestView, now_s: float) -> None: ...

    def peek(self, now_s: float) -> RequestView:
        """The request that ``pop`` would take at this instant. Raises ``IndexError`` when none waits."""
        ...

    def pop(self, now_s: float) -> RequestView:
        """Takes the next request out. Raises ``IndexError`` when none waits."""
        ...

    def remove(self, request: RequestView) -> bool:
        """Takes one request out of turn; ``False`` when it does not wait here."""
        ...

    def __len__(self) -> int: ...


MOST_PLACE = 2**32 - 1
"""Of a request among those of its class inside an engine."""


class EngineOrderPolicy(Policy, Protocol):
    """Answers: which request of its class goes next inside an engine?

    Engines keep their own queues. Those that take requests by priority (``Need.ENGINE_PRIORITY``) take a class that
    matters more before the others, and in each go by what a policy says; the others take all in order of arrival.
    """

    def place(self, request: RequestView, prefill_tokens: int) -> int:
        """Smaller goes first, among equals the earlier arrival; from 0 to ``MOST_PLACE``.

        Asked for each attempt, when its replica has been picked. ``prefill_tokens`` is what it is expected to compute
        of its prompt there: nothing for a decode.
        """
        ...


class ScalingPolicy(Policy, Protocol):
    """Answers: how many replicas is each pool to have? One answers it for all gateways, once in a period."""

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        """Replicas by pool, those that start among them; a pool that is not named keeps what it has.

        The host keeps to each pool's ``min_replicas`` and ``max_replicas``.
        """
        ...


def _no_other_queue(name: str) -> QueueingPolicy:
    raise LookupError(f"nobody can make another queue like {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """One policy for each question, as :func:`policies.catalog.build` makes it for every host alike.

    ``shared`` are what several of them use, and it learns from what happens as they do. ``another_queue`` makes one
    more policy like that of a queue, by the queue's name.
    """

    degradation: DegradationPolicy
    admission: AdmissionPolicy
    shedding: SheddingPolicy
    preemption: PreemptionPolicy
    hedging: HedgingPolicy
    retrying: RetryPolicy
    ejection: EjectionPolicy
    engine_order: EngineOrderPolicy
    balancers: dict[Role, Balancer] = field(default_factory=dict)
    queues: dict[str, QueueingPolicy] = field(default_factory=dict)
    another_queue: Callable[[str], QueueingPolicy] = field(default=_no_other_queue)
    shared: Sequence[Learner] = ()
    _observers: dict[type[Signal], list[Learner]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for policy in self._each():
            for kind in policy.consumes:
                self._observers.setdefault(kind, []).append(cast(Learner, policy))

    @property
    def subscribed(self) -> frozenset[type[Signal]]:
        """Types of signals that at least one policy wants; making another one is for nothing."""
        return frozenset(self._observers)

    def observe(self, signal: Signal) -> None:
        """Tells every policy that consumes signals of this type."""
        for policy in self._observers.get(type(signal), ()):
            policy.observe(signal)

    def observe_request(self, signal: RequestSignal, permits: Permits) -> None:
        """Tells every policy that consumes signals of this type, each with the permit that it gave to the request."""
        for policy in self._observers.get(type(signal), ()):
            policy.observe(with_permit(signal, permit_of(policy, permits)) if permits else signal)

    def _each(self) -> Iterator[Policy]:
        yield from (self.degradation, self.admission, self.shedding, self.preemption)
        yield from (self.hedging, self.retrying, self.ejection, self.engine_order)
        yield from self.balancers.values()
        yield from self.queues.values()
        yield from self.shared

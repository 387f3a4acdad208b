"""A dialogue with a dispatcher: the test speaks for the host, and reads what the dispatcher asked for in return.

::

    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to a"]
    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to b"]
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from cluster import Seeds
from policies import Need, PolicyChoice, PolicySpec, Reason, Reject, RequestView, Role
from policies.signals import AttemptSignal, RequestSignal, Signal
from policies.views import Priority
from routing import (
    Accepted,
    AnswerBegun,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    Cancel,
    CancelProbe,
    CancelTimer,
    ClientGone,
    ClientRetry,
    Commit,
    Degraded,
    DispatcherParams,
    DispatcherSpec,
    Effect,
    Ejection,
    Event,
    FirstTokenReceived,
    FleetChanged,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Probe,
    ProbeEnded,
    Readmission,
    Record,
    ReplicaReported,
    Respond,
    Resumption,
    Retry,
    Send,
    SetTimer,
    ShareCacheChange,
    ShareFirstArrival,
    SharePrompt,
    TimerFired,
    Truncate,
    build_dispatcher,
)
from routing.assembly import NO_BREAKERS
from routing.breakers.breakers import NoBreakers
from routing.config.spec import MAX_TOKENS, NO_TRACKER, LanesSpec
from routing.intake.slos import NO_SLOS, Slos
from routing.request.news import CacheChange, FirstArrival, SentPrompt
from routing.request.refusal import refusal
from routing.sizing.geometry import ServiceRates
from tests.policy_doubles import KeepAndRecord, replica_info

DOUBLES = "tests.policy_doubles"
BLOCK_TOKENS = 100
NO_HEDGE = PolicyChoice(name="no_hedge")
ALWAYS_ADMIT = PolicyChoice(name="always_admit")
FCFS = PolicyChoice(name="fcfs")
NEVER_PREEMPT = PolicyChoice(name="never_preempt")
NEVER_EJECT = PolicyChoice(name="never_eject")
AT_ONCE = PolicyChoice(name="at_once")
NEVER_DEGRADE = PolicyChoice(name="never_degrade")
LEAST_WORK_LEFT = PolicyChoice(name="least_work_left")
BY_ARRIVAL = PolicyChoice(name="by_arrival")
FIXED = PolicyChoice(name="fixed")
NOWHERE_IN_PARTICULAR: Mapping[str, str] = MappingProxyType({})
KEEP_AND_RECORD = PolicyChoice(name=f"{DOUBLES}:KeepAndRecord")

E = TypeVar("E", bound=Effect)


def hedge_after(delay_s: float) -> PolicyChoice:
    """The test policy that hedges every attempt after ``delay_s``."""
    return PolicyChoice(name=f"{DOUBLES}:HedgeAfter", params={"delay_s": delay_s})


NO_LANES = LanesSpec()


class Dialogue:
    """One dispatcher, one virtual clock, and all that was said.

    Args:
        planner: Name of the planner.
        planner_params: Its parameters.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
        hedging: Choice of the hedging policy.
        retrying: Choice of the retry policy.
        ejection: Choice of the ejection policy.
        admission: Choice of the admission policy.
        shedding: Choice of the shedding policy; the default keeps everything and records the signals.
        preemption: Choice of the policy that stops sheddable requests.
        degradation: Choice of the degradation policy.
        queueing: Choice of the policy that puts lines in order.
        balancing: Choice of the balancer.
        engine_order: Choice of the policy that puts attempts inside engines in order.
        params: Limits of the dispatcher.
        rates: How fast the engines are.
        kv_lease_s: How long prefill engines hold KV.
        slos: What requests are promised.
        num_gateways: Dispatchers that there are.
        length_prediction: How long answers are expected to be.
        prefixes: Who keeps track of the replicas' prefix caches.
        lanes: Which requests are kept apart.
        scaling: Choice of the scaling policy, which no dispatcher asks; it is told what it wants to know.
        breakers: Around policies of somebody's own.
    """

    def __init__(
        self,
        *,
        planner: str = "always_unified",
        planner_params: Mapping[str, Any] = MappingProxyType({}),
        whole_request_pools: tuple[str, ...] = (),
        hedging: PolicyChoice = NO_HEDGE,
        retrying: PolicyChoice = AT_ONCE,
        ejection: PolicyChoice = NEVER_EJECT,
        admission: PolicyChoice = ALWAYS_ADMIT,
        shedding: PolicyChoice = KEEP_AND_RECORD,
        preemption: PolicyChoice = NEVER_PREEMPT,
        degradation: PolicyChoice = NEVER_DEGRADE,
        queueing: PolicyChoice = FCFS,
        balancing: PolicyChoice = LEAST_WORK_LEFT,
        engine_order: PolicyChoice = BY_ARRIVAL,
        params: DispatcherParams | None = None,
        rates: ServiceRates | None = None,
        kv_lease_s: float = 30.0,
        slos: Slos = NO_SLOS,
        num_gateways: int = 1,
        length_prediction: PolicyChoice = MAX_TOKENS,
        prefixes: PolicyChoice = NO_TRACKER,
        lanes: LanesSpec = NO_LANES,
        scaling: PolicyChoice = FIXED,
        breakers: NoBreakers = NO_BREAKERS,
    ) -> None:
        self.spec = DispatcherSpec(
            planner=PolicyChoice(name=planner, params=dict(planner_params)),
            pools={role.value: role for role in Role},
            whole_request_pools=whole_request_pools,
            policies=PolicySpec(
                admission=admission,
                degradation=degradation,
                shedding=shedding,
                preemption=preemption,
                hedging=hedging,
                retrying=retrying,
                ejection=ejection,
                queueing=queueing,
                balancing=balancing,
                engine_order=engine_order,
                scaling=scaling,
            ),
            rates=rates or ServiceRates(),
            kv_lease_s=kv_lease_s,
            slos=slos,
            num_gateways=num_gateways,
            has_load_coordinator=num_gateways > 1,
            length_prediction=length_prediction,
            prefixes=prefixes,
            lanes=lanes,
            params=params or DispatcherParams(),
        )
        self.dispatcher = build_dispatcher(
            self.spec, rng_for=Seeds(1).stream, provided=frozenset(Need), breakers=breakers
        )
        self.policies = self.dispatcher.policies
        self.now_s = 0.0
        self.answer: list[Effect] = []
        self._all: list[Effect] = []

    # -- what the host says -------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Any event, now."""
        self.answer = list(self.dispatcher.handle(event, self.now_s))
        self._all += self.answer

    def at(self, now_s: float) -> "Dialogue":
        """The clock moves on: ``talk.at(3.0).arrives("q")``."""
        assert now_s >= self.now_s
        self.now_s = now_s
        return self

    def replicas(
        self, role: Role, *replica_ids: str, slots: int = 8, failure_domains: Mapping[str, str] = NOWHERE_IN_PARTICULAR
    ) -> "Dialogue":
        """These replicas of a role are up now, and no others."""
        infos = tuple(
            replica_info(each, role, slots=slots, failure_domain=failure_domains.get(each, "")) for each in replica_ids
        )
        self.tell(FleetChanged(pool=role.value, role=role, replicas=infos))
        return self

    def arrives(
        self,
        request_id: str,
        *,
        prompt_tokens: int = 100,
        max_output_tokens: int = 50,
        budget_s: float = 60.0,
        priority: Priority = Priority.STANDARD,
        tenant: str = "",
        is_resumable: bool = True,
        has_cached_answer: bool = False,
        sent_as: str = "",
        is_keyed: bool = False,
        retry_count: int = 0,
        prefix_blocks: tuple[int, ...] = (),
        prompt_id: int = 0,
    ) -> None:
        """A request comes in; ``sent_as`` is its idempotency key, or stands for its body.

        Its prefix's blocks have 100 tokens each.
        """
        request = RequestView(
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            arrival_s=self.now_s,
            deadline_s=self.now_s + budget_s,
            priority=priority,
            tenant=tenant,
            is_resumable=is_resumable,
            has_cached_answer=has_cached_answer,
            logical_request_id=sent_as,
            is_keyed=is_keyed,
            retry_count=retry_count,
            prefix_blocks=prefix_blocks,
            prefix_block_tokens=BLOCK_TOKENS if prefix_blocks else 0,
            prompt_id=prompt_id,
        )
        self.tell(Arrived(request=request))

    def accepts(self, attempt_id: str, replica_id: str) -> None:
        """A replica took the attempt."""
        self.tell(Accepted(attempt_id=attempt_id, replica_id=replica_id))

    def begins_answer(self, attempt_id: str) -> None:
        """The attempt passed the first token on that was drawn with its prompt, whose KV it still pulls."""
        self.tell(AnswerBegun(attempt_id=attempt_id))

    def first_token(self, attempt_id: str) -> None:
        """The attempt's first token came."""
        self.tell(FirstTokenReceived(attempt_id=attempt_id))

    def finishes(self, attempt_id: str, output_tokens: int = 50) -> None:
        """The attempt did all it was sent for."""
        self.tell(AttemptFinished(attempt_id=attempt_id, output_tokens=output_tokens))

    def fails(self, attempt_id: str, reason: Reason, output_tokens: int = 0, *, was_taken: bool = True) -> None:
        """The attempt ended without finishing, with so many tokens emitted; its replica had it, or was gone before."""
        failed = AttemptFailed(attempt_id=attempt_id, reason=reason, output_tokens=output_tokens, was_taken=was_taken)
        self.tell(failed)

    def stops(self, attempt_id: str, output_tokens: int = 0) -> None:
        """The attempt ended because the dispatcher had cancelled it, with so many tokens emitted."""
        self.tell(AttemptFailed(attempt_id=attempt_id, reason=Reason.CLIENT_GONE, output_tokens=output_tokens))

    def withdraws(self, attempt_id: str) -> None:
        """The attempt ended before anything was done for it: the one that it is tied to has the claim."""
        self.tell(AttemptWithdrawn(attempt_id=attempt_id))

    def client_goes(self, request_id: str) -> None:
        """The client closed the connection."""
        self.tell(ClientGone(request_id=request_id))

    def fires(self, token: str) -> None:
        """A timer fires, at the time it was set to unless that has passed."""
        at_s = {each.token: each.at_s for each in self._every(SetTimer)}[token]
        self.now_s = max(self.now_s, at_s)
        self.tell(TimerFired(token=token))

    def reports(self, replica_id: str, kv_tokens: int, kv_cache_usage: float = 0.0, *, prefill_tokens: int = 0) -> None:
        """A replica tells its load."""
        self.tell(
            ReplicaReported(
                replica_id=replica_id,
                prefill_tokens=prefill_tokens,
                kv_tokens=kv_tokens,
                kv_cache_usage=kv_cache_usage,
            )
        )

    def probe_ends(self, probe_id: str, *, is_well: bool = True) -> None:
        """A replica has answered a request of the gateway's own, or has failed on it."""
        self.tell(ProbeEnded(probe_id=probe_id, is_well=is_well))

    # -- what the dispatcher answered to the last event ---------------------------------------------------------------

    @property
    def sends(self) -> list[str]:
        """Attempts it asked for, in words."""
        return [
            f"{each.attempt_id} {each.stage} to {each.replica_id}" + (f" from {each.kv_from}" if each.kv_from else "")
            for each in self._last(Send)
        ]

    @property
    def probes(self) -> list[str]:
        """Replicas that it has probed, by the probes' ids."""
        return [f"{each.probe_id} on {each.replica_id}" for each in self.last_probes]

    @property
    def last_probes(self) -> list[Probe]:
        """The same as they are."""
        return self._last(Probe)

    @property
    def cancelled_probes(self) -> list[str]:
        """Probes that it does not wait for any more."""
        return [each.probe_id for each in self._last(CancelProbe)]

    @property
    def cancels(self) -> list[str]:
        """Attempts it wants stopped."""
        return [each.attempt_id for each in self._last(Cancel)]

    @property
    def commits(self) -> list[str]:
        """Attempts whose tokens are the answer."""
        return [each.attempt_id for each in self._last(Commit)]

    @property
    def cuts(self) -> list[str]:
        """Attempts whose answers are to end where they are."""
        return [each.attempt_id for each in self._last(Truncate)]

    @property
    def degraded(self) -> list[Degraded]:
        """Requests that it answers more cheaply."""
        return [each.decision for each in self._last(Record) if isinstance(each.decision, Degraded)]

    @property
    def responses(self) -> dict[str, Outcome]:
        """How requests ended."""
        return {each.request_id: each.outcome for each in self._last(Respond)}

    @property
    def placements(self) -> list[Placement]:
        """Decisions it recorded."""
        return [each.decision for each in self._last(Record) if isinstance(each.decision, Placement)]

    @property
    def preemptions(self) -> list[Preemption]:
        """Requests that are to go on later."""
        return [each.decision for each in self._last(Record) if isinstance(each.decision, Preemption)]

    @property
    def ejections(self) -> list[str]:
        """Replicas that are out from now on, and those that are back, in words."""
        words: dict[type[object], str] = {Ejection: "out", Readmission: "back"}
        decisions = [each.decision for each in self._last(Record)]
        return [
            f"{each.replica_id} {words[type(each)]}" for each in decisions if isinstance(each, Ejection | Readmission)
        ]

    @property
    def retries(self) -> list[Retry]:
        """Records of the last answer."""
        return [each.decision for each in self._last(Record) if isinstance(each.decision, Retry)]

    @property
    def client_retries(self) -> list[ClientRetry]:
        """Requests that their clients have sent before, as the last answer says."""
        return [each.decision for each in self._last(Record) if isinstance(each.decision, ClientRetry)]

    @property
    def shared(self) -> tuple[FirstArrival, ...]:
        """What the other gateways are to know."""
        return tuple(each.arrival for each in self._last(ShareFirstArrival))

    @property
    def shared_prompts(self) -> list[SentPrompt]:
        """Those that the other gateways are to know of."""
        return [each.prompt for each in self._last(SharePrompt)]

    @property
    def shared_cache_changes(self) -> list[CacheChange]:
        """Likewise."""
        return [each.change for each in self._last(ShareCacheChange)]

    @property
    def resumptions(self) -> list[Resumption]:
        """Answers that are to go on elsewhere."""
        return [each.decision for each in self._last(Record) if isinstance(each.decision, Resumption)]

    # -- what has been said in all ------------------------------------------------------------------------------------

    @property
    def timers(self) -> dict[str, float]:
        """Timers that are set and not cancelled, whether they have fired or not."""
        cancelled = {each.token for each in self._every(CancelTimer)}
        return {each.token: each.at_s for each in self._every(SetTimer) if each.token not in cancelled}

    @property
    def signals(self) -> list[AttemptSignal]:
        """What the policies were told of attempts."""
        return [each for each in self._recorded if isinstance(each, AttemptSignal)]

    @property
    def request_signals(self) -> list[RequestSignal]:
        """What they were told of requests."""
        return [each for each in self._recorded if isinstance(each, RequestSignal)]

    @property
    def _recorded(self) -> list[Signal]:
        recorder = self.policies.shedding
        assert isinstance(recorder, KeepAndRecord)
        return recorder.signals

    @property
    def signal_names(self) -> list[str]:
        """The same, in words."""
        return [f"{type(each).__name__} {each.attempt_id}" for each in self.signals]

    @property
    def load(self) -> dict[str, tuple[int, int]]:
        """Ongoing requests and work left of each live replica."""
        live = [each for role in Role for each in self.dispatcher.fleet.live(role, self.now_s)]
        return {each.replica_id: (each.num_ongoing_requests, each.work_tokens) for each in live}

    @property
    def is_over(self) -> bool:
        """Nothing is open, nothing waits, every slot is back."""
        dispatcher = self.dispatcher
        held = dispatcher.num_open_requests, dispatcher.num_open_attempts, dispatcher.num_waiting_requests
        return held == (0, 0, 0) and dispatcher.fleet.num_ongoing_requests == 0

    def _last(self, kind: type[E]) -> list[E]:
        return [each for each in self.answer if isinstance(each, kind)]

    def _every(self, kind: type[E]) -> list[E]:
        return [each for each in self._all if isinstance(each, kind)]


def completed() -> Outcome:
    """The whole answer was given."""
    return Outcome(kind=OutcomeKind.COMPLETED)


def refused(reason: Reason, retry_after_s: float = 2.0, *, to: str = "q", may_retry: bool = True) -> Outcome:
    """Nothing of the answer was given; ``to`` is the request, whose id spreads the time to try again."""
    return refusal(to, Reject(reason=reason, retry_after_s=retry_after_s, may_retry=may_retry))


def failed(reason: Reason, *, may_retry: bool = True) -> Outcome:
    """The answer broke off."""
    return Outcome(kind=OutcomeKind.FAILED, reason=reason, may_retry=may_retry)


def cancelled() -> Outcome:
    """Nobody wants the answer any more."""
    return Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE)

"""A host that keeps its obligations, keeps accounts of its own, and checks every effect against them.

It shares nothing with the dispatcher but the events and effects: what it believes of slots, suspicion and waiting
requests is computed here a second time, more simply.
"""

from dataclasses import dataclass, field

from cluster import DispatcherListener, NoEventLog, Seeds
from policies import Need, PolicyChoice, PolicySpec, Reason, RequestView, Role, signals
from policies.views import Priority
from routing import (
    Accepted,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    DispatcherParams,
    DispatcherSpec,
    Effect,
    Event,
    FirstToken,
    FleetChanged,
    OutcomeKind,
    Placement,
    Plan,
    Record,
    ReplicaInfo,
    ReplicaReported,
    Respond,
    Send,
    SetTimer,
    TimerFired,
    build_dispatcher,
    build_planner,
)
from routing.geometry import ServiceRates
from tests.policy_doubles import FakeFleet, KeepAndRecord

DOUBLES = "tests.policy_doubles"
NUM_TENANTS = 4
NUM_TOPICS = 7
BLOCK_TOKENS = 256


@dataclass(kw_only=True)
class Sent:
    """An attempt as the host knows it."""

    send: Send
    replica_id: str
    has_first_token: bool = False
    is_cancelled: bool = False
    is_superseded: bool = False

    @property
    def work_tokens(self) -> int:
        """What it adds to its replica's work now."""
        return self.send.kv_tokens + (0 if self.has_first_token else self.send.prefill_tokens)


@dataclass(kw_only=True)
class Story:
    """A request as the host knows it."""

    request: RequestView
    stage: Role
    responses: list[OutcomeKind] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    finished_prefills: list[str] = field(default_factory=list)
    lost_on: set[str] = field(default_factory=set)
    is_ending: bool = False


@dataclass(frozen=True, kw_only=True)
class HostParams:
    """What one run is made of."""

    planner: str = "always_unified"
    whole_request_pools: tuple[str, ...] = ()
    balancing: str = "least_work_left"
    queueing: str = "fcfs"
    hedge_delay_s: float | None = None
    max_attempts: int = 4
    seed: int = 0

    @property
    def spec(self) -> DispatcherSpec:
        """What the dispatcher is made from."""
        hedging = PolicyChoice(name="no_hedge")
        if self.hedge_delay_s is not None:
            hedging = PolicyChoice(name=f"{DOUBLES}:HedgeAfter", params={"delay_s": self.hedge_delay_s})
        return DispatcherSpec(
            planner=PolicyChoice(name=self.planner),
            pools={role.value: role for role in Role},
            whole_request_pools=self.whole_request_pools,
            policies=PolicySpec(
                shedding=PolicyChoice(name=f"{DOUBLES}:KeepAndRecord"),
                hedging=hedging,
                queueing=PolicyChoice(name=self.queueing),
                balancing=PolicyChoice(name=self.balancing),
            ),
            prefixes=PolicyChoice(name="block_hash"),
            rates=ServiceRates(new_token_s=1e-4) if self.queueing == "drr" else ServiceRates(),
            params=DispatcherParams(max_attempts=self.max_attempts),
        )


class ScriptedHost:
    """Tells a dispatcher what a script says, and fails on the first effect that breaks a rule."""

    def __init__(self, params: HostParams, listener: DispatcherListener | None = None) -> None:
        spec = params.spec
        self.dispatcher = build_dispatcher(spec, rng_for=Seeds(params.seed).stream, provided=frozenset(Need))
        assert isinstance(self.dispatcher.policies.shedding, KeepAndRecord)
        self._signals = self.dispatcher.policies.shedding.signals
        self._listener = listener or NoEventLog()
        self._limits = spec.params
        self._planner = build_planner(spec.planner, frozenset(Role))
        self._whole_request_pools = spec.whole_request_pools
        self.roles: Plan = tuple(role for role in Role if role in self._planner.roles)
        self.now_s = 0.0
        self.is_intact = True
        self.log: list[Effect] = []
        self.stories: dict[str, Story] = {}
        self.open: dict[str, Sent] = {}
        self.ended: dict[str, type[signals.Signal]] = {}
        self.timers: dict[str, float] = {}
        self.up: dict[Role, dict[str, ReplicaInfo]] = {role: {} for role in Role}
        self._infos: dict[str, ReplicaInfo] = {}
        self._suspect_until_s: dict[str, float] = {}
        self._kept: dict[str, set[int]] = {}

    # -- what can happen ----------------------------------------------------------------------------------------------

    def change_fleet(self, role: Role, slots_by_id: dict[str, int]) -> None:
        """These are the replicas of the role; one that was up before is the same as it was."""
        known = self.up[role]
        self.up[role] = {each: self._info(each, role, slots) for each, slots in slots_by_id.items()}
        for replica_id in set(known) - set(self.up[role]):
            self._kept.pop(replica_id, None)
            self._forget_if_idle(replica_id)
        self._tell(FleetChanged(pool=role.value, role=role, replicas=tuple(self.up[role].values())))

    def arrive(self, prompt_tokens: int, max_output_tokens: int, budget_s: float) -> None:
        """A request comes in."""
        topic = len(self.stories) % NUM_TOPICS + 1
        request = RequestView(
            request_id=f"r{len(self.stories)}",
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            arrival_s=self.now_s,
            deadline_s=self.now_s + budget_s,
            priority=tuple(Priority)[len(self.stories) % len(Priority)],
            tenant=f"t{len(self.stories) % NUM_TENANTS}",
            session_id=f"s{topic}",
            prefix_blocks=tuple(range(1000 * topic, 1000 * topic + prompt_tokens // BLOCK_TOKENS)),
            prefix_block_tokens=BLOCK_TOKENS,
        )
        self.stories[request.request_id] = Story(request=request, stage=self._first_stage(request))
        self._tell(Arrived(request=request))

    def accept(self, attempt_id: str, replica_id: str) -> None:
        """A replica of the stage took the attempt, perhaps another one than was picked."""
        sent = self.open[attempt_id]
        left, sent.replica_id = sent.replica_id, replica_id
        self._forget_if_idle(left)
        self._tell(Accepted(attempt_id=attempt_id, replica_id=replica_id))

    def first_token(self, attempt_id: str) -> None:
        """The first token came."""
        self.open[attempt_id].has_first_token |= not self.open[attempt_id].is_cancelled
        self._tell(FirstToken(attempt_id=attempt_id))

    def finish(self, attempt_id: str) -> None:
        """The attempt did what it was sent for."""
        sent = self._end(attempt_id, signals.Completed)
        self._forget_if_idle(sent.replica_id)
        story = self.stories[sent.send.request_id]
        if sent.send.stage is Role.PREFILL and not sent.is_cancelled:
            story.finished_prefills.append(attempt_id)
            story.stage, story.lost_on = Role.DECODE, set()
        self._tell(AttemptFinished(attempt_id=attempt_id, output_tokens=3))

    def fail(self, attempt_id: str, reason: Reason) -> None:
        """The attempt ended without finishing."""
        stopped = signals.Superseded if self.open[attempt_id].is_superseded else signals.Cancelled
        sent = self._end(attempt_id, stopped if self.open[attempt_id].is_cancelled else signals.Failed)
        story = self.stories[sent.send.request_id]
        if reason is Reason.REPLICA_LOST:
            self._suspect_until_s[sent.replica_id] = self.now_s + self._limits.suspect_s
            story.lost_on.add(sent.replica_id)
        elif reason is Reason.KV_TRANSFER_FAILED and not sent.is_cancelled and not self._is_active(story):
            story.stage, story.lost_on = self._first_stage(story.request), set()
        self._forget_if_idle(sent.replica_id)
        self._tell(AttemptFailed(attempt_id=attempt_id, reason=reason))

    def repeat(self, attempt_id: str) -> None:
        """Events about an attempt that has ended come late or twice; nothing follows from them."""
        replica_id = min(self.up[self.roles[0]], default="gone")
        late: list[Event] = [
            Accepted(attempt_id=attempt_id, replica_id=replica_id),
            FirstToken(attempt_id=attempt_id),
            AttemptFinished(attempt_id=attempt_id, output_tokens=3),
            AttemptFailed(attempt_id=attempt_id, reason=Reason.REPLICA_LOST),
        ]
        for event in late:
            assert self._handle(event) == []

    def client_goes(self, request_id: str) -> None:
        """The client closed the connection, before or after the end."""
        self._tell(ClientGone(request_id=request_id))

    def fire(self, token: str) -> None:
        """A timer fires, perhaps late."""
        self.now_s = max(self.now_s, self.timers.pop(token))
        self._tell(TimerFired(token=token))

    def report(self, replica_id: str, work_tokens: int) -> None:
        """A replica tells its load."""
        self._tell(ReplicaReported(replica_id=replica_id, prefill_tokens=0, kv_tokens=work_tokens, kv_cache_usage=0.5))

    def wind_up(self) -> None:
        """Everything ends: what runs finishes, what waits is sent or expires, and every timer fires."""
        while self.open or self.timers:
            for attempt_id in sorted(self.open):
                self.finish(attempt_id)
            if self.timers:
                self.fire(min(self.timers, key=lambda token: (self.timers[token], token)))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Both sides hold the same slots, and nobody waits for a slot that is free."""
        dispatcher = self.dispatcher
        assert len(self.open) == dispatcher.num_open_attempts == dispatcher.fleet.num_ongoing_requests
        unfinished = {each.send.request_id for each in self.open.values()}
        unfinished |= {name for name, story in self.stories.items() if not story.responses}
        assert dispatcher.num_open_requests == len(unfinished)
        waiting = [each for each in self.stories.values() if not each.responses and not self._is_active(each)]
        assert dispatcher.num_waiting_requests == len(waiting)
        self._check_replicas()
        if all(at_s > self.now_s for at_s in self.timers.values()):
            for story in waiting:
                self._check_it_must_wait(story)

    def check_the_end(self) -> None:
        """Every request was answered once, every attempt ended once, and nothing is left over."""
        dispatcher = self.dispatcher
        assert all(len(story.responses) == 1 for story in self.stories.values())
        left = dispatcher.num_open_requests, dispatcher.num_open_attempts, dispatcher.num_waiting_requests
        assert left == (0, 0, 0)
        assert dispatcher.fleet.num_ongoing_requests == 0
        self._check_signals()

    def _check_replicas(self) -> None:
        for role in self.roles:
            live = self.dispatcher.fleet.live(role, self.now_s)
            assert [each.replica_id for each in live] == [each for each in self._serving(role) if self._is_live(each)]
            for replica in live:
                here = [each for each in self.open.values() if each.replica_id == replica.replica_id]
                assert replica.num_ongoing_requests == len(here)
                assert replica.work_tokens >= sum(each.work_tokens for each in here)

    def _check_it_must_wait(self, story: Story) -> None:
        live = {each for each in self._serving(story.stage) if self._is_live(each)}
        assert live, "there is nobody to wait for"
        assert not {each for each in live if self._has_room(each)} - story.lost_on

    def _check_signals(self) -> None:
        told: dict[str, list[type[signals.Signal]]] = {}
        for signal in self._signals:
            if isinstance(signal, signals.AttemptSignal):
                told.setdefault(signal.attempt_id, []).append(type(signal))
        assert set(told) == set(self.ended)
        for attempt_id, kinds in told.items():
            assert kinds[0] is signals.Dispatched
            assert kinds[1:-1] in ([], [signals.FirstToken])
            assert kinds[-1] is self.ended[attempt_id]
        self._check_request_signals()

    def _check_request_signals(self) -> None:
        told: dict[str, list[type[signals.Signal]]] = {}
        for signal in self._signals:
            if isinstance(signal, signals.RequestSignal):
                told.setdefault(signal.request.request_id, []).append(type(signal))
        for kinds in told.values():
            assert kinds[0] is signals.Admitted
            assert kinds[-1] is signals.Ended
            assert kinds[1:-1] in ([], [signals.Started], [signals.Started, signals.Answering])

    # -- carrying effects out -----------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        self.is_intact = False
        effects = self._handle(event)
        self.log += effects
        for effect in effects:
            self._carry_out(effect)
        self.is_intact = True

    def _handle(self, event: Event) -> list[Effect]:
        effects = list(self.dispatcher.handle(event, self.now_s))
        self._listener.on_event(self.now_s, event, effects)
        return effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._start(effect)
            case Cancel():
                sent = self.open[effect.attempt_id]
                assert not sent.is_cancelled, "stopped twice"
                sent.is_cancelled = True
                sent.is_superseded = not self.stories[sent.send.request_id].is_ending
            case Commit():
                sent = self.open.get(effect.attempt_id) or self._just_ended
                assert (sent.send.attempt_id, sent.send.request_id) == (effect.attempt_id, effect.request_id)
                assert not sent.is_cancelled
                assert sent.send.stage is not Role.PREFILL
                self.stories[effect.request_id].commits.append(effect.attempt_id)
                assert len(self.stories[effect.request_id].commits) == 1
            case SetTimer():
                assert effect.token not in self.timers
                self.timers[effect.token] = effect.at_s
            case CancelTimer():
                self.timers.pop(effect.token, None)
                self.stories[effect.token.rpartition(":")[0]].is_ending = True
            case Respond():
                self._respond(effect)
            case Record():
                assert isinstance(effect.decision, Placement), "there are no lanes"
                assert effect.decision.num_candidates >= 1

    def _start(self, send: Send) -> None:
        story = self.stories[send.request_id]
        assert send.attempt_id not in self.open
        assert send.attempt_id not in self.ended, "an attempt id was used twice"
        assert not story.responses, "sent after the answer"
        assert not story.commits, "sent after the first token"
        assert send.stage is story.stage
        assert self._is_live(send.replica_id)
        assert self._has_room(send.replica_id)
        assert send.replica_id not in story.lost_on
        assert (send.kv_from is None) is (send.stage is not Role.DECODE)
        assert send.kv_from is None or send.kv_from == story.finished_prefills[-1]
        attempts = [each for each in [*self.open, *self.ended] if each.rpartition(".")[0] == send.request_id]
        assert len(attempts) < self._limits.max_attempts + (send.stage is Role.DECODE)
        prompt_tokens, most_tokens = story.request.prompt_tokens, story.request.max_output_tokens
        assert send.prefill_tokens == (0 if send.stage is Role.DECODE else self._uncached_tokens(story.request, send))
        assert send.kv_tokens == (0 if send.stage is Role.PREFILL else prompt_tokens + most_tokens)
        assert send.replica_id in self._serving(send.stage)
        assert send.pool == self._infos[send.replica_id].pool
        self.open[send.attempt_id] = Sent(send=send, replica_id=send.replica_id)

    def _uncached_tokens(self, request: RequestView, send: Send) -> int:
        """What is left of the prompt on a replica that keeps all it was ever sent, which fits any index."""
        kept = self._kept.setdefault(send.replica_id, set())
        num_found = sum(block in kept for block in request.prefix_blocks)
        kept.update(request.prefix_blocks)
        return max(1, request.prompt_tokens - (num_found * BLOCK_TOKENS if num_found > 1 else 0))

    def _respond(self, effect: Respond) -> None:
        story = self.stories[effect.request_id]
        outcome = effect.outcome
        story.responses.append(outcome.kind)
        assert len(story.responses) == 1, "answered twice"
        assert (outcome.reason is None) is (outcome.kind is OutcomeKind.COMPLETED)
        if outcome.kind is not OutcomeKind.CANCELLED:
            assert bool(story.commits) is (outcome.kind is not OutcomeKind.REFUSED)
        assert not self._is_active(story), "an attempt was left running"

    def _end(self, attempt_id: str, kind: type[signals.Signal]) -> Sent:
        self._just_ended = self.open.pop(attempt_id)
        self.ended[attempt_id] = kind
        return self._just_ended

    # -- the host's own view ------------------------------------------------------------------------------------------

    def _info(self, replica_id: str, role: Role, slots: int) -> ReplicaInfo:
        info = ReplicaInfo(
            pool=role.value, replica_id=replica_id, role=role, max_ongoing_requests=slots, kv_capacity_tokens=10_000
        )
        return self._infos.setdefault(replica_id, info)

    def _is_active(self, story: Story) -> bool:
        name = story.request.request_id
        return any(each.send.request_id == name and not each.is_cancelled for each in self.open.values())

    def _num_here(self, replica_id: str) -> int:
        return sum(each.replica_id == replica_id for each in self.open.values())

    def _is_up(self, replica_id: str) -> bool:
        return any(replica_id in pool for pool in self.up.values())

    def _is_live(self, replica_id: str) -> bool:
        return self._is_up(replica_id) and self.now_s >= self._suspect_until_s.get(replica_id, 0.0)

    def _has_room(self, replica_id: str) -> bool:
        return self._num_here(replica_id) < self._infos[replica_id].max_ongoing_requests

    def _first_stage(self, request: RequestView) -> Role:
        return self._planner.plan(request, FakeFleet(), self.now_s)[0]

    def _serving(self, stage: Role) -> list[str]:
        """Replicas that are up and serve a stage, in order of id."""
        lent = self._whole_request_pools if stage is Role.UNIFIED else ()
        return sorted(each for role in Role if role is stage or role.value in lent for each in self.up[role])

    def replicas_beside(self, attempt_id: str) -> list[str]:
        """The replicas of the pool that an attempt runs in."""
        return sorted(self.up[self._infos[self.open[attempt_id].replica_id].role])

    def _forget_if_idle(self, replica_id: str) -> None:
        """A replica that left, and holds nothing, is a new one if it comes back."""
        if not self._is_up(replica_id) and self._num_here(replica_id) == 0:
            self._suspect_until_s.pop(replica_id, None)

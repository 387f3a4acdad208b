"""A host that keeps its obligations, keeps accounts of its own, and checks every effect against them.

It shares nothing with the dispatcher but the events and effects: what it believes of slots, quarantine and waiting
requests is computed here a second time, more simply.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster import DispatcherListener, NoEventLog, Seeds
from policies import Need, PolicyChoice, PolicySpec, Reason, RequestView, Role, signals
from policies.views import Priority
from routing import (
    Accepted,
    AnswerBegun,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    Degraded,
    DispatcherParams,
    DispatcherSpec,
    Effect,
    Ejection,
    Event,
    FirstTokenReceived,
    FleetChanged,
    OutcomeKind,
    Placement,
    Plan,
    Preemption,
    Race,
    Readmission,
    Record,
    ReleaseKv,
    Replan,
    ReplicaInfo,
    ReplicaReported,
    Respond,
    Resumption,
    Retry,
    Send,
    SetTimer,
    TimerFired,
    Truncate,
    build_dispatcher,
    build_planner,
    reconfigured,
)
from routing.fleet.ejection import PROBATION_S
from routing.request.request import PROGRESS_TOKENS
from routing.request.stages import DISAGGREGATED, UNIFIED
from routing.sizing.geometry import ServiceRates
from tests.policy_doubles import FakeFleet, KeepAndRecord, replica_info

DOUBLES = "tests.policy_doubles"
NUM_TENANTS = 4
NUM_TOPICS = 7
BLOCK_TOKENS = 256
GOES_ON_AFTER = (Reason.REPLICA_LOST, Reason.KV_TRANSFER_FAILED)
IN_FULL = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors", params={"what": "in full"})
TIES = ("tied", f"{DOUBLES}:TieAfter")
"""Policies whose second attempts share a claim with the first."""
OTHER_PLAN = {Role.UNIFIED: DISAGGREGATED, Role.PREFILL: UNIFIED, Role.DECODE: UNIFIED}
LESS = {"max_output_tokens": 1000, "output_time_limit_s": 0.1}


@dataclass(kw_only=True)
class Sent:
    """An attempt as the host knows it."""

    send: Send
    replica_id: str
    has_first_token: bool = False
    is_cancelled: bool = False
    is_superseded: bool = False
    is_preempted: bool = False

    @property
    def is_given_up(self) -> bool:
        """Nobody listens to what it says."""
        return self.is_cancelled and not self.is_preempted

    @property
    def work_tokens(self) -> int:
        """What it adds to its replica's work now."""
        return self.send.kv_tokens + (0 if self.has_first_token else self.send.prefill_tokens)


@dataclass(kw_only=True)
class Story:
    """A request as the host knows it."""

    request: RequestView
    plan: Plan
    stage: Role
    most_tokens: int
    responses: list[OutcomeKind] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    finished_prefills: list[str] = field(default_factory=list)
    kv_replica_id: str = ""
    kv_until_s: float = math.inf
    idle_kv: str = ""
    """The prefill whose blocks are held for sure: no decode can have pulled them."""
    num_pulls: int = 0
    released: set[str] = field(default_factory=set)
    lost_on: set[str] = field(default_factory=set)
    erred_on: set[tuple[Role, str]] = field(default_factory=set)
    lost_beside: str = ""
    has_lost_kv: bool = False
    num_emitted: int = 0
    num_tries: Counter[Role] = field(default_factory=Counter)
    lost_with: set[tuple[Role, str]] = field(default_factory=set)
    is_ending: bool = False
    is_tied: bool = False
    is_truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class HostParams:
    """What one run is made of."""

    planner: str = "always_unified"
    whole_request_pools: tuple[str, ...] = ()
    balancing: str = "least_work_left"
    queueing: str = "fcfs"
    waiting_room_s: float = 0.0
    degrades: bool = False
    preempts: bool = False
    ejects: bool = False
    ramp_stage_s: float = 0.0
    hedge_delay_s: float | None = None
    ties: bool = False
    has_rates: bool = False
    max_attempts: int = 4
    max_fruitless_losses: int = 2
    given_out_tokens: int = 2
    """What each attempt that is lost in mid-answer has emitted."""
    retry_after_s: float = 0.0
    priorities: tuple[Priority, ...] = tuple(Priority)
    seed: int = 0

    @property
    def knows_rates(self) -> bool:
        """Whether somebody has said how fast engines are: some policies have to know."""
        return self.has_rates or self.queueing == "drr" or self.balancing == "least_delay"

    @property
    def spec(self) -> DispatcherSpec:
        """What the dispatcher is made from."""
        hedging = PolicyChoice(name="no_hedge")
        if self.hedge_delay_s is not None:
            double = "TieAfter" if self.ties else "HedgeAfter"
            hedging = PolicyChoice(name=f"{DOUBLES}:{double}", params={"delay_s": self.hedge_delay_s})
        return DispatcherSpec(
            planner=PolicyChoice(name=self.planner),
            pools={role.value: role for role in Role},
            whole_request_pools=self.whole_request_pools,
            policies=PolicySpec(
                shedding=PolicyChoice(name=f"{DOUBLES}:KeepAndRecord"),
                degradation=PolicyChoice(name=f"{DOUBLES}:DegradeTo", params=LESS if self.degrades else {}),
                preemption=PolicyChoice(name="newest_sheddable" if self.preempts else "never_preempt"),
                hedging=hedging,
                retrying=PolicyChoice(name=f"{DOUBLES}:RetryAfter", params={"after_s": self.retry_after_s}),
                ejection=IN_FULL if self.ejects else PolicyChoice(name="never_eject"),
                queueing=PolicyChoice(name=self.queueing),
                balancing=PolicyChoice(name=self.balancing),
            ),
            prefixes=PolicyChoice(name="block_hash"),
            rates=ServiceRates(new_token_s=1e-4) if self.knows_rates else ServiceRates(),
            params=DispatcherParams(
                max_attempts=self.max_attempts,
                max_fruitless_losses=self.max_fruitless_losses,
                ramp_stage_s=self.ramp_stage_s,
                waiting_room_s=self.waiting_room_s,
                probe_s=0.0,
            ),
        )


class ScriptedHost:
    """Tells a dispatcher what a script says, and fails on the first effect that breaks a rule."""

    def __init__(self, params: HostParams, listener: DispatcherListener | None = None) -> None:
        spec = params.spec
        self.dispatcher = build_dispatcher(spec, rng_for=Seeds(params.seed).stream, provided=frozenset(Need))
        assert isinstance(self.dispatcher.policies.shedding, KeepAndRecord)
        self._signals = self.dispatcher.policies.shedding.signals
        self._listener = listener or NoEventLog()
        self.spec = spec
        self._undecided: dict[str, str] = {}
        self._limits = spec.params
        self._given_out_tokens = params.given_out_tokens
        self._priorities = params.priorities
        self._planner = build_planner(spec.planner, frozenset(Role))
        self._whole_request_pools = spec.whole_request_pools
        self.roles: Plan = tuple(role for role in Role if role in self._planner.roles)
        self.now_s = 0.0
        self.is_intact = True
        self._winner: Sent | None = None
        self.log: list[Effect] = []
        self.stories: dict[str, Story] = {}
        self.open: dict[str, Sent] = {}
        self.ended: dict[str, type[signals.Signal]] = {}
        self.timers: dict[str, float] = {}
        self.up: dict[Role, dict[str, ReplicaInfo]] = {role: {} for role in Role}
        self._infos: dict[str, ReplicaInfo] = {}
        self._suspect_until_s: dict[str, float] = {}
        self._ejected_until_s: dict[str, float] = {}
        self._erring: dict[str, tuple[int, float]] = {}
        self._kept: dict[str, set[int]] = {}
        self._known: set[str] = set()
        self._begun: set[Role] = set()
        self._empty_since_s: dict[Role, float] = {}
        self._most_at: dict[str, int] = {}
        self._ramps: dict[str, str] = {}
        self._checks: dict[type, Callable[[Any], None]] = {
            Retry: self._check_retry,
            Replan: self._check_replan,
            Ejection: self._eject,
            Readmission: self._readmit,
        }

    # -- what can happen ----------------------------------------------------------------------------------------------

    def change_fleet(self, role: Role, slots_by_id: dict[str, int]) -> None:
        """These are the replicas of the role; one that was up before is the same as it was."""
        known = self.up[role]
        fresh = slots_by_id.keys() - self._known if role in self._begun and self._limits.ramp_stage_s else ()
        self._most_at |= dict.fromkeys(fresh, 1)
        self._known |= slots_by_id.keys()
        self._begun |= {role} if slots_by_id else set()
        if slots_by_id:
            self._empty_since_s.pop(role, None)
        elif known:
            self._empty_since_s[role] = self.now_s
        self.up[role] = {each: self._info(each, role, slots) for each, slots in slots_by_id.items()}
        for replica_id in set(known) - set(self.up[role]):
            self._kept.pop(replica_id, None)
            self._ejected_until_s.pop(replica_id, None)
            self._erring.pop(replica_id, None)
            self._most_at.pop(replica_id, None)
            self._ramps = {token: its for token, its in self._ramps.items() if its != replica_id}
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
            priority=self._priorities[len(self.stories) % len(self._priorities)],
            tenant=f"t{len(self.stories) % NUM_TENANTS}",
            session_id=f"s{topic}",
            prefix_blocks=tuple(range(1000 * topic, 1000 * topic + prompt_tokens // BLOCK_TOKENS)),
            prefix_block_tokens=BLOCK_TOKENS,
        )
        plan = self._planner.plan(request, FakeFleet(), self.now_s)
        self.stories[request.request_id] = Story(
            request=request, plan=plan, stage=plan[0], most_tokens=max_output_tokens
        )
        self._tell(Arrived(request=request))

    def accept(self, attempt_id: str, replica_id: str) -> None:
        """A replica of the stage took the attempt, perhaps another one than was picked."""
        sent = self.open[attempt_id]
        left, sent.replica_id = sent.replica_id, replica_id
        self._forget_if_idle(left)
        self._tell(Accepted(attempt_id=attempt_id, replica_id=replica_id))

    def begin_answer(self, attempt_id: str) -> None:
        """A decode passed the first token on that came with its prompt, perhaps after one of its own."""
        sent = self.open[attempt_id]
        if not (sent.is_given_up or sent.has_first_token):
            self._wins(sent)
        self._tell(AnswerBegun(attempt_id=attempt_id))

    def first_token(self, attempt_id: str) -> None:
        """The first token of its own came."""
        sent = self.open[attempt_id]
        if not (sent.is_given_up or sent.has_first_token):
            sent.has_first_token = True
            self._wins(sent)
        self._tell(FirstTokenReceived(attempt_id=attempt_id))

    def finish(self, attempt_id: str) -> None:
        """The attempt did what it was sent for."""
        sent = self._end(attempt_id, signals.Completed)
        self._forget_if_idle(sent.replica_id)
        story = self.stories[sent.send.request_id]
        if not sent.is_given_up:
            self._wins(sent)
            if sent.send.stage is Role.PREFILL:
                story.finished_prefills.append(attempt_id)
                story.kv_replica_id, story.idle_kv, story.num_pulls = sent.replica_id, attempt_id, 0
                story.kv_until_s = self.now_s + self.spec.kv_lease_s * 2 / 3
                self._enters(story, Role.DECODE)
        self._tell(AttemptFinished(attempt_id=attempt_id, output_tokens=3))

    def fail(self, attempt_id: str, reason: Reason, *, was_taken: bool = True) -> None:
        """The attempt ended without finishing; its replica had it, or was gone before."""
        stopped = signals.Superseded if self.open[attempt_id].is_superseded else signals.Cancelled
        sent = self._end(attempt_id, stopped if self.open[attempt_id].is_cancelled else signals.Failed)
        story = self.stories[sent.send.request_id]
        if reason is Reason.REPLICA_LOST:
            self._spare(sent.replica_id, self.now_s + self._limits.quarantine_s)
            story.lost_on.add(sent.replica_id)
        elif reason is Reason.ENGINE_ERROR and not sent.is_cancelled:
            story.lost_on.add(sent.replica_id)
            story.erred_on.add((sent.send.stage, sent.replica_id))
            if 0.0 <= self.now_s - self._erring.get(sent.replica_id, (0, -math.inf))[1] < PROBATION_S:
                self._spare_erring(sent.replica_id)
        elif reason is Reason.KV_TRANSFER_FAILED and not sent.is_cancelled and not self._is_active(story):
            if self._is_pulled_elsewhere(story, sent):
                story.lost_on = {sent.replica_id}
            else:
                story.stage, story.lost_on = story.plan[0], {story.kv_replica_id}
                self._allow_the_last(story)
        if not sent.is_cancelled and (reason is Reason.KV_TRANSFER_FAILED or not was_taken):
            story.idle_kv = sent.send.kv_from or ""
        elif sent.send.kv_from and not (sent.is_cancelled or story.commits) and reason is not Reason.KV_TRANSFER_FAILED:
            self._enters(story, story.plan[0])  # they may have been pulled, and freed
        story.has_lost_kv = reason is Reason.KV_TRANSFER_FAILED
        self._ends(story, sent, reason, was_taken=was_taken)

    @staticmethod
    def _enters(story: Story, stage: Role) -> None:
        """It is at a stage, and avoids those alone whose engines have failed on it there."""
        story.stage = stage
        story.lost_on = {replica_id for erred_at, replica_id in story.erred_on if erred_at is stage}

    def _is_pulled_elsewhere(self, story: Story, sent: Sent) -> bool:
        """Whether another decode tries, with the blocks where they are."""
        is_held = self.now_s < story.kv_until_s and self._is_live(story.kv_replica_id)
        others = [each for each in self._own(Role.DECODE) if each != sent.replica_id and self._is_live(each)]
        return is_held and not story.commits and story.num_pulls == 1 and bool(others)

    def _ends(self, story: Story, sent: Sent, reason: Reason, *, was_taken: bool) -> None:
        """What becomes of its request."""
        attempt_id = sent.send.attempt_id
        given_out = self._given_out_tokens if story.commits == [attempt_id] else 0
        if not sent.is_cancelled:
            self._count(story, sent, given_out, is_loss=reason is Reason.REPLICA_LOST and was_taken)
        if sent.is_preempted and not self._is_active(story):
            self._gives_way(story, given_out)
        elif given_out and reason in GOES_ON_AFTER and not sent.is_cancelled and self._may_be_repeated(story, sent):
            self._goes_on(story, given_out)
            story.lost_on = {story.kv_replica_id if story.has_lost_kv else sent.replica_id}
            if story.has_lost_kv:
                self._allow_the_last(story)
        elif not sent.is_cancelled and self._is_active(story):
            story.lost_beside = attempt_id
        self._forget_if_idle(sent.replica_id)
        self._tell(AttemptFailed(attempt_id=attempt_id, reason=reason, output_tokens=given_out, was_taken=was_taken))

    def _count(self, story: Story, sent: Sent, given_out: int, *, is_loss: bool) -> None:
        """With progress all begins anew; without it, a loss may be the request's doing."""
        if given_out >= PROGRESS_TOKENS:
            story.num_tries.clear()
            story.lost_with.clear()
        elif is_loss:
            story.lost_with.add((sent.send.stage, sent.replica_id))

    @property
    def decodes(self) -> list[str]:
        """Attempts that pull KV."""
        return sorted(name for name, sent in self.open.items() if sent.send.stage is Role.DECODE)

    @property
    def undecided(self) -> list[str]:
        """Attempts that may have to give way: one of a pair that is without a first token and has not given way."""
        pairs = [pair for pair in self._undecided.items() if not self._has_begun(pair)]
        return sorted(each for pair in pairs for each in pair if each in self.open)

    def give_way(self, attempt_id: str) -> None:
        """The one that it is tied to has the claim, and may have ended in another way since."""
        self._undecided = {one: other for one, other in self._undecided.items() if attempt_id not in (one, other)}
        sent = self.open[attempt_id]
        is_stopped = sent.is_cancelled and not sent.is_superseded
        self._end(attempt_id, signals.Cancelled if is_stopped else signals.Superseded)
        story = self.stories[sent.send.request_id]
        if not self._is_active(story):
            if sent.is_preempted:
                self._gives_way(story, 0)
            elif not (sent.is_cancelled or story.lost_beside):
                story.num_tries[sent.send.stage] -= 1
        elif not sent.is_cancelled:
            self._winner = next(each for each in self._attempts_of(story) if not each.is_cancelled)
        self._forget_if_idle(sent.replica_id)
        self._tell(AttemptWithdrawn(attempt_id=attempt_id))

    def _has_begun(self, pair: tuple[str, str]) -> bool:
        return any(each in self.open and self.open[each].has_first_token for each in pair)

    def _wins(self, sent: Sent) -> None:
        """An attempt has beaten the others of its request: none of them is to go on. Who failed on it is to blame."""
        self._winner = sent
        story = self.stories[sent.send.request_id]
        if not story.commits:
            is_last = sent.send.stage is story.plan[-1]
            cleared = {each for each in story.erred_on if is_last or each[0] is sent.send.stage}
            for replica_id in filter(self._is_known, sorted(replica_id for _, replica_id in cleared)):
                self._spare_erring(replica_id)
            story.erred_on -= cleared
        for rival in self._attempts_of(self.stories[sent.send.request_id]):
            rival.is_preempted &= rival is sent

    def _gives_way(self, story: Story, given_out: int) -> None:
        """A request that was preempted begins again, and its attempts so far do not count."""
        self._goes_on(story, given_out)
        story.num_tries.clear()
        for other in self._attempts_of(story):
            other.is_preempted = False

    def _goes_on(self, story: Story, given_out: int) -> None:
        """A request begins again, with what it has emitted behind its prompt."""
        story.num_emitted += given_out
        story.commits = []
        self._enters(story, story.plan[0])

    def _may_be_repeated(self, story: Story, sent: Sent) -> bool:
        has_tries = max(story.num_tries.values(), default=0) < self._limits.max_attempts
        return not story.is_truncated and has_tries and not self._is_given_up(story, sent.send.stage)

    def _is_given_up(self, story: Story, stage: Role) -> bool:
        return sum(role is stage for role, _ in story.lost_with) >= self._limits.max_fruitless_losses

    def _attempts_of(self, story: Story) -> list[Sent]:
        return [each for each in self.open.values() if each.send.request_id == story.request.request_id]

    def repeat(self, attempt_id: str) -> None:
        """Events about an attempt that has ended come late or twice; nothing follows from them."""
        replica_id = min(self.up[self.roles[0]], default="gone")
        late: list[Event] = [
            Accepted(attempt_id=attempt_id, replica_id=replica_id),
            AnswerBegun(attempt_id=attempt_id),
            FirstTokenReceived(attempt_id=attempt_id),
            AttemptFinished(attempt_id=attempt_id, output_tokens=3),
            AttemptFailed(attempt_id=attempt_id, reason=Reason.REPLICA_LOST),
            AttemptWithdrawn(attempt_id=attempt_id),
        ]
        for event in late:
            assert self._handle(event) == []

    def client_goes(self, request_id: str) -> None:
        """The client closed the connection, before or after the end."""
        self._tell(ClientGone(request_id=request_id))

    def fire(self, token: str) -> None:
        """A timer fires, perhaps late."""
        self.now_s = max(self.now_s, self.timers.pop(token))
        if replica_id := self._ramps.pop(token, ""):
            self._end_stage(replica_id)
        story = self.stories.get(token.removesuffix(":retry"))
        if story is not None and story.has_lost_kv:
            self._allow_the_last(story)
        self._tell(TimerFired(token=token))

    def _end_stage(self, replica_id: str) -> None:
        """Twice as many may be at a fresh replica now, or as many as it takes."""
        self._most_at[replica_id] *= 2
        if self._most_at[replica_id] >= self._infos[replica_id].max_ongoing_requests:
            del self._most_at[replica_id]

    def report(self, replica_id: str, work_tokens: int) -> None:
        """A replica tells its load."""
        self._tell(ReplicaReported(replica_id=replica_id, prefill_tokens=0, kv_tokens=work_tokens, kv_cache_usage=0.5))

    def reconfigure(self, spec: DispatcherSpec) -> None:
        """Policies are others from now on; planner, limits and the recorder of signals stay."""
        self.spec = spec
        self._tell(reconfigured(spec))

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
        held = [each for each in self.stories.values() if any(sent.is_preempted for sent in self._attempts_of(each))]
        idle = [each for each in self.stories.values() if not each.responses and not self._is_active(each)]
        waiting = [each for each in idle if each not in held and not self._is_backing_off(each)]
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

    def _is_backing_off(self, story: Story) -> bool:
        """Whether it stands in no line because it is to be tried again later."""
        return f"{story.request.request_id}:retry" in self.timers and not self._is_active(story)

    def _check_replicas(self) -> None:
        for role in self.roles:
            live = self.dispatcher.fleet.live(role, self.now_s)
            assert [each.replica_id for each in live] == [each for each in self._own(role) if self._is_live(each)]
            for replica in live:
                here = [each for each in self.open.values() if each.replica_id == replica.replica_id]
                assert replica.num_ongoing_requests == len(here)
                assert replica.work_tokens >= sum(each.work_tokens for each in here)

    def _check_it_must_wait(self, story: Story) -> None:
        live = {each for each in self._serving(story.stage) if self._is_live(each)}
        assert live or self._is_expecting(story.stage), "there is nobody to wait for"
        assert live or not self._can_go_by(OTHER_PLAN[story.stage], story), "there is another way"
        assert not {each for each in live if self._has_room(each)} - story.lost_on

    def _can_go_by(self, plan: Plan, story: Story) -> bool:
        """Whether each stage has a replica that the request has not failed on."""
        served = ({each for each in self._serving(stage) if self._is_live(each)} for stage in plan)
        return all(each - story.lost_on for each in served)

    def _check_replan(self, replan: Replan) -> None:
        """Something is missing for what is left of its plan, and nothing for the other one; or its KV is too old."""
        story = self.stories[replan.request_id]
        assert replan.instead_of == story.plan[story.plan.index(story.stage) :]
        missing = [each for each in replan.instead_of if not self._is_served(each, story)]
        if story.stage is not Role.DECODE or self.now_s < story.kv_until_s:
            assert missing, "its plan was possible"
            assert all(any(map(self._is_live, self._serving(each))) for each in replan.plan)
        story.plan, story.stage = replan.plan, replan.plan[0]

    def _is_served(self, stage: Role, story: Story) -> bool:
        """Whether a stage has a replica that is for it and that the request has not failed on."""
        return bool({each for each in self._own(stage) if self._is_live(each)} - story.lost_on)

    def _is_expecting(self, stage: Role) -> bool:
        """Whether one that serves the stage is out for a while, or a pool has lost its last one not long ago."""
        is_whole = stage is Role.UNIFIED
        roles = [each for each in Role if each is stage or is_whole or each.value in self._whole_request_pools]
        out = [each for role in roles for each in self.up[role] if not self._is_live(each)]
        closes_s = [
            self._empty_since_s[each] + self._limits.waiting_room_s for each in roles if each in self._empty_since_s
        ]
        return bool(self._limits.waiting_room_s) and (bool(out) or self.now_s < max(closes_s, default=0.0))

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
        self._winner = None
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
                self._stop(self.open[effect.attempt_id])
            case ReleaseKv():
                self._release(effect)
            case Truncate() | Commit():
                self._follow(effect)
            case SetTimer() | CancelTimer():
                self._follow_timer(effect)
            case Respond():
                self._respond(effect)
            case Record():
                self._check_decision(effect.decision)

    def _release(self, effect: ReleaseKv) -> None:
        """Nobody is pulling these blocks, and nobody will."""
        story = self.stories[effect.request_id]
        assert effect.kv_from == story.idle_kv
        assert self.now_s < story.kv_until_s
        assert self._is_live(effect.replica_id)
        assert effect.replica_id in self._own(Role.DECODE)
        story.idle_kv = ""
        story.released.add(effect.kv_from)

    def _follow_timer(self, effect: SetTimer | CancelTimer) -> None:
        if isinstance(effect, CancelTimer):
            self._forget_timer(effect.token)
        else:
            assert effect.token not in self.timers
            self._set_timer(effect)

    def _set_timer(self, effect: SetTimer) -> None:
        self.timers[effect.token] = effect.at_s
        subject, _, purpose = effect.token.rpartition(":")
        if purpose == "ramp":
            assert effect.at_s == self.now_s + self._limits.ramp_stage_s
            self._ramps[effect.token] = subject.rpartition(".")[0]

    def _forget_timer(self, token: str) -> None:
        """Of a replica that is called back, or of a request that is answered now: nothing of it is to go on."""
        self.timers.pop(token, None)
        subject, _, purpose = token.rpartition(":")
        if purpose == "ejection":
            return
        story = self.stories[subject]
        story.is_ending = True
        for sent in self._attempts_of(story):
            sent.is_preempted = False

    def _stop(self, sent: Sent) -> None:
        assert not sent.is_cancelled, "stopped twice"
        story, winner = self.stories[sent.send.request_id], self._winner
        is_beaten = winner is not None and winner is not sent and winner.send.request_id == sent.send.request_id
        sent.is_cancelled = True
        sent.is_superseded = is_beaten and not story.is_ending
        sent.is_preempted = not (is_beaten or story.is_ending)
        if sent.is_preempted:
            assert story.request.priority is Priority.SHEDDABLE
            assert sent.send.stage is not Role.DECODE or sent.has_first_token, "its KV may be on its way"

    def _follow(self, effect: Commit | Truncate) -> None:
        sent = self.open.get(effect.attempt_id) or self._just_ended
        story = self.stories[sent.send.request_id]
        assert sent.send.attempt_id == effect.attempt_id
        assert not sent.is_given_up
        if isinstance(effect, Commit):
            assert sent.send.request_id == effect.request_id
            assert sent.send.stage is not Role.PREFILL
            story.commits.append(effect.attempt_id)
        else:
            story.is_truncated = True
        assert story.commits == [effect.attempt_id]

    def _check_decision(self, decision: object) -> None:
        if isinstance(decision, Degraded):
            story = self.stories[decision.request_id]
            assert story.request.priority is not Priority.CRITICAL
            story.most_tokens = decision.max_output_tokens
            assert story.most_tokens == min(1000, story.request.max_output_tokens)
        elif isinstance(decision, Preemption):
            assert self.stories[decision.request_id].request.priority is Priority.SHEDDABLE
        elif isinstance(decision, Race):
            assert self.open.get(decision.attempt_id, self._winner) is self._winner
            assert (decision.superseded_tokens > 0) is not self.stories[decision.request_id].is_tied
        elif isinstance(decision, Resumption):
            assert self._just_ended.send.attempt_id == decision.attempt_id
            assert decision.output_tokens == self._given_out_tokens
        elif check := self._checks.get(type(decision)):
            check(decision)
        else:
            assert isinstance(decision, Placement), "there are no lanes"
            assert decision.num_candidates >= 1

    def _check_retry(self, retry: Retry) -> None:
        """It was lost before the client had anything, and there is nothing else under way.

        Of a pair the lost one is tried again, also when the other is withdrawn after it.
        """
        story, ended = self.stories[retry.request_id], self._just_ended.send.attempt_id
        is_withdrawn = self.ended[ended] is signals.Superseded
        assert retry.attempt_id == (story.lost_beside if is_withdrawn else ended)
        assert retry.reason in (Reason.REPLICA_LOST, Reason.KV_TRANSFER_FAILED, Reason.ENGINE_ERROR)
        assert self.spec.policies.retrying.params.get("after_s", retry.after_s) == retry.after_s
        assert not story.commits
        assert not self._is_active(story)

    def _eject(self, ejection: Ejection) -> None:
        """From here on nothing may be sent there; there is somebody else."""
        replica_id, until_s = ejection.replica_id, ejection.until_s
        assert until_s > self.now_s
        assert any(self._is_live(each) for each in self.up[self._infos[replica_id].role] if each != replica_id)
        self._ejected_until_s[replica_id] = until_s
        self._spare(replica_id, until_s)

    def _spare(self, replica_id: str, until_s: float) -> None:
        """Nothing may be sent there; another reason may be good for longer."""
        self._suspect_until_s[replica_id] = max(until_s, self._suspect_until_s.get(replica_id, 0.0))

    def _spare_erring(self, replica_id: str) -> None:
        """Twice as long the second time in a row, and four times as long from then on; not while it is out for it."""
        if not self._is_known(replica_id):
            return
        times, until_s = self._erring.get(replica_id, (0, -math.inf))
        others = [each for each in self.up[self._infos[replica_id].role] if each != replica_id]
        if self.now_s < until_s or not any(map(self._is_live, others)):
            return
        times = times + 1 if self.now_s < until_s + PROBATION_S else 1
        until_s = self.now_s + self._limits.quarantine_s * (1, 2, 4)[min(times, 3) - 1]
        self._erring[replica_id] = times, until_s
        self._spare(replica_id, until_s)

    def _readmit(self, readmission: Readmission) -> None:
        """Its time is over; if it is not, nobody else is left."""
        until_s = self._ejected_until_s.pop(readmission.replica_id)
        if self.now_s < until_s:
            assert readmission.pool == self._infos[readmission.replica_id].pool
            self._suspect_until_s.pop(readmission.replica_id)

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
        assert send.kv_from is None or (send.kv_from not in story.released and self.now_s < story.kv_until_s)
        story.idle_kv = ""
        story.num_pulls += send.kv_from is not None
        most_tries = self._limits.max_attempts * (1 + (send.stage is Role.PREFILL))  # KV may be lost as often as well
        assert self._is_active(story) or story.num_tries[send.stage] < most_tries
        assert self._is_active(story) or not self._is_given_up(story, send.stage)
        prompt_tokens = story.request.prompt_tokens + story.num_emitted
        most_tokens = max(1, story.most_tokens - story.num_emitted)
        uncached_tokens = 0 if send.stage is Role.DECODE else self._uncached_tokens(story.request, prompt_tokens, send)
        assert send.prefill_tokens == uncached_tokens
        assert send.kv_tokens == (0 if send.stage is Role.PREFILL else prompt_tokens + most_tokens)
        assert send.replica_id in self._serving(send.stage)
        assert send.pool == self._infos[send.replica_id].pool
        active = [each.send.attempt_id for each in self._attempts_of(story) if not each.is_cancelled]
        story.is_tied = bool(active) and self.spec.policies.hedging.name in TIES
        assert ([send.tied_to] if send.tied_to else []) == (active if story.is_tied else [])
        if send.tied_to:
            self._undecided[send.attempt_id] = send.tied_to
        if not self._is_active(story):
            story.num_tries[send.stage] += 1
            story.lost_beside = ""
        self.open[send.attempt_id] = Sent(send=send, replica_id=send.replica_id)

    def _uncached_tokens(self, request: RequestView, prompt_tokens: int, send: Send) -> int:
        """What is left of the prompt on a replica that keeps all it was ever sent, which fits any index."""
        kept = self._kept.setdefault(send.replica_id, set())
        num_found = sum(block in kept for block in request.prefix_blocks)
        kept.update(request.prefix_blocks)
        return max(1, prompt_tokens - (num_found * BLOCK_TOKENS if num_found > 1 else 0))

    def _respond(self, effect: Respond) -> None:
        story = self.stories[effect.request_id]
        outcome = effect.outcome
        story.responses.append(outcome.kind)
        assert len(story.responses) == 1, "answered twice"
        assert (outcome.reason is None) is (outcome.kind is OutcomeKind.COMPLETED)
        if outcome.kind is not OutcomeKind.CANCELLED:
            assert bool(story.commits or story.num_emitted) is (outcome.kind is not OutcomeKind.REFUSED)
        assert not self._is_active(story), "an attempt was left running"

    def _end(self, attempt_id: str, kind: type[signals.Signal]) -> Sent:
        self._just_ended = self.open.pop(attempt_id)
        self.ended[attempt_id] = kind
        return self._just_ended

    # -- the host's own view ------------------------------------------------------------------------------------------

    def _info(self, replica_id: str, role: Role, slots: int) -> ReplicaInfo:
        info = replica_info(replica_id, role, slots=slots)
        return self._infos.setdefault(replica_id, info)

    def _is_active(self, story: Story) -> bool:
        name = story.request.request_id
        return any(each.send.request_id == name and not each.is_cancelled for each in self.open.values())

    def _num_here(self, replica_id: str) -> int:
        return sum(each.replica_id == replica_id for each in self.open.values())

    def _is_known(self, replica_id: str) -> bool:
        return self._is_up(replica_id) or self._num_here(replica_id) > 0

    def _is_up(self, replica_id: str) -> bool:
        return any(replica_id in pool for pool in self.up.values())

    def _allow_the_last(self, story: Story) -> None:
        """Blocks are made anew on another replica than the one whose were not to be had; there may be no other."""
        if {each for each in self._serving(story.stage) if self._is_live(each)} <= story.lost_on:
            story.lost_on = set()

    def _is_live(self, replica_id: str) -> bool:
        return self._is_up(replica_id) and self.now_s >= self._suspect_until_s.get(replica_id, 0.0)

    def _has_room(self, replica_id: str) -> bool:
        most = min(self._infos[replica_id].max_ongoing_requests, self._most_at.get(replica_id, 1_000_000))
        return self._num_here(replica_id) < most

    def _own(self, stage: Role) -> list[str]:
        """Replicas that are up and there for a stage, in order of id."""
        lent = self._whole_request_pools if stage is Role.UNIFIED else ()
        return sorted(each for role in Role if role is stage or role.value in lent for each in self.up[role])

    def _serving(self, stage: Role) -> list[str]:
        """The same, or those that stand in where none of them is live."""
        own = self._own(stage)
        if stage is not Role.UNIFIED or any(map(self._is_live, own)):
            return own
        sides = (sorted(self.up[each]) for each in (Role.DECODE, Role.PREFILL))
        return next((each for each in sides if any(map(self._is_live, each))), own)

    def replicas_beside(self, attempt_id: str) -> list[str]:
        """The replicas of the pool that an attempt runs in."""
        return sorted(self.up[self._infos[self.open[attempt_id].replica_id].role])

    def _forget_if_idle(self, replica_id: str) -> None:
        """A replica that left, and holds nothing, is a new one if it comes back."""
        if not self._is_up(replica_id) and self._num_here(replica_id) == 0:
            self._known.discard(replica_id)
            self._suspect_until_s.pop(replica_id, None)

"""A request on its way through the dispatcher, and the attempts that it leads to.

What is known of one request between its arrival and its last attempt's end is in its :class:`Request`; what is known of
one dispatch of one of its stages is in an :class:`Attempt`. Their fields are written here and nowhere else; their
states follow the tables of :mod:`routing.request.states`.
"""

import math
from collections.abc import Sequence

import msgspec

from policies import signals
from policies.decisions import AGAIN_AT_ONCE, Again, Reason
from policies.signals import NO_PERMITS, Permits
from policies.views import RequestView, Role
from routing.request.effects import (
    Cancel,
    CancelTimer,
    Commit,
    Demotion,
    Effect,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Race,
    Record,
    ReleaseKv,
    Replan,
    Resumption,
    Retry,
    Send,
    SetTimer,
    Truncate,
)
from routing.request.events import AttemptFailed
from routing.request.stages import Plan
from routing.request.states import (
    ANSWER_TRANSITIONS,
    ATTEMPT_TRANSITIONS,
    GIVEN_UP,
    PREEMPTED,
    REQUEST_TRANSITIONS,
    UNDER_WAY,
    AnswerState,
    AnswerStep,
    AttemptState,
    AttemptStep,
    RequestState,
    RequestStep,
    refuse,
)


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One dispatch of one stage of one request to one replica.

    Args:
        attempt_id: ``<request id>.<n>``, n counting from 0 within the request.
        request_id: The request.
        stage: What runs.
        replica_id: Where it holds a slot; follows the replica that really accepted it.
        prefill_tokens: Prompt tokens that it still has to compute, and what keeps it from that; 0 from its first token
            on.
        kv_tokens: KV tokens that it is expected to hold at its longest.
        kv_blocks: Blocks of the prompt that it holds, as policies see them; none, where it holds no KV for longer.
        kv_block_tokens: Tokens in such a block.
        sent_at_s: When it was sent.
        kv_from: For a decode, the prefill attempt whose blocks it pulls.
        tied_to: The attempt beside it with which it shares an execution claim.
        is_hedge: Whether it was sent beside another one of the same stage.
        by_profile_s: How long its first token should take by the engine's profile; 0: nobody has said.
        adapter: The LoRA adapter that it is computed with; empty: none.
        load_tokens: What loading that takes first, in prompt tokens that could be computed meanwhile; part of
            ``prefill_tokens``.
        has_adapter: Whether the replica was taken to have it when it was sent.
        stalled_by: What its end counts as, where something stands still: the replica's loss, or that of the KV. None:
            nothing does.
        again: When its request is tried again then.
        state: Where it is.
    """

    attempt_id: str
    request_id: str
    stage: Role
    replica_id: str
    prefill_tokens: int
    kv_tokens: int
    sent_at_s: float
    kv_blocks: tuple[int, ...] = ()
    kv_block_tokens: int = 0
    kv_from: str | None = None
    tied_to: str | None = None
    is_hedge: bool = False
    by_profile_s: float = 0.0
    adapter: str = ""
    load_tokens: int = 0
    has_adapter: bool = True
    stalled_by: Reason | None = None
    again: Again = AGAIN_AT_ONCE
    state: AttemptState = AttemptState.SENT

    @property
    def work_tokens(self) -> int:
        """What it adds to its replica's work."""
        return self.prefill_tokens + self.kv_tokens

    @property
    def hedge_token(self) -> str:
        """Names the timer after which it is hedged."""
        return f"{self.attempt_id}:hedge"

    # -- steps --------------------------------------------------------------------------------------------------------

    def expect(self, by_profile_s: float) -> None:
        """Its first token should take so long."""
        self.by_profile_s = by_profile_s

    def first_token(self) -> None:
        """Its first token has come: its prompt is computed."""
        self._step(AttemptStep.FIRST_TOKEN)
        self.prefill_tokens = self.load_tokens = 0

    def preempt(self) -> Cancel:
        """Its slot is wanted; what asks for its end."""
        self._step(AttemptStep.PREEMPT)
        return Cancel(attempt_id=self.attempt_id)

    def stall(self, reason: Reason, again: Again) -> Cancel:
        """What it needs stands still; what asks for its end, which counts as a loss for ``reason``."""
        self._step(AttemptStep.STALL)
        self.stalled_by, self.again = reason, again
        return Cancel(attempt_id=self.attempt_id)

    def supersede(self) -> Cancel:
        """Another attempt of its stage has won; what asks for its end."""
        self._step(AttemptStep.SUPERSEDE)
        return Cancel(attempt_id=self.attempt_id)

    def cancel(self) -> tuple[Cancel, ...]:
        """It is not needed any more; what asks for its end, unless that has been asked for."""
        was, is_ending = self.state, self.state in GIVEN_UP
        if not is_ending:
            self._step(AttemptStep.CANCEL)
        return (Cancel(attempt_id=self.attempt_id),) if was in UNDER_WAY else ()

    def close(self) -> None:
        """It has ended."""
        self._step(AttemptStep.CLOSE)

    def _step(self, step: AttemptStep) -> None:
        self.state = ATTEMPT_TRANSITIONS.get((self.state, step)) or refuse(self.attempt_id, self.state, step)

    def move_to(self, replica_id: str) -> None:
        """Another replica took it than the one that was picked."""
        self.replica_id = replica_id

    def grow_to(self, kv_tokens: int) -> None:
        """It is expected to hold so many KV tokens now."""
        self.kv_tokens = kv_tokens

    # -- effects, records and signals about it ------------------------------------------------------------------------

    def sent(self, pool: str, lane_limits_tokens: tuple[int, ...], engine_priority: int) -> Send:
        """The effect that starts it on its replica, which is one of ``pool``."""
        return Send(
            attempt_id=self.attempt_id,
            request_id=self.request_id,
            stage=self.stage,
            replica_id=self.replica_id,
            pool=pool,
            prefill_tokens=self.prefill_tokens - self.load_tokens,
            kv_tokens=self.kv_tokens,
            kv_from=self.kv_from,
            lane_limits_tokens=() if self.stage is Role.PREFILL else lane_limits_tokens,
            engine_priority=engine_priority,
            tied_to=self.tied_to,
        )

    def placement(self, num_candidates: int) -> Record:
        """The record of the decision that led to it."""
        placement = Placement(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            replica_id=self.replica_id,
            num_candidates=num_candidates,
            is_hedge=self.is_hedge,
            adapter=self.adapter,
            has_adapter=self.has_adapter,
        )
        return Record(decision=placement)

    def race(self, losers: Sequence["Attempt"]) -> Record:
        """The record that it was quicker than others of its stage, of which those not tied to it worked in vain.

        One that is tied to it has left its queue as a rule, even if that is not known here yet.
        """
        race = Race(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            is_hedge=self.is_hedge,
            superseded_tokens=sum(each.prefill_tokens for each in losers if not self._is_tied_with(each)),
        )
        return Record(decision=race)

    def _is_tied_with(self, other: "Attempt") -> bool:
        return self.tied_to == other.attempt_id or other.tied_to == self.attempt_id

    def demotion(self, from_lane: str, to_lane: str, output_tokens: int) -> Record:
        """The record that its answer has exceeded a lane's length."""
        demotion = Demotion(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            from_lane=from_lane,
            to_lane=to_lane,
            output_tokens=output_tokens,
        )
        return Record(decision=demotion)

    def preemption(self, output_tokens: int) -> Record:
        """The record that it was preempted, with so many tokens of its answer emitted."""
        preemption = Preemption(request_id=self.request_id, attempt_id=self.attempt_id, output_tokens=output_tokens)
        return Record(decision=preemption)

    def resumption(self, output_tokens: int) -> Record:
        """The record that its replica was lost with so many tokens of its answer emitted, which is resumed
        elsewhere.
        """
        resumption = Resumption(request_id=self.request_id, attempt_id=self.attempt_id, output_tokens=output_tokens)
        return Record(decision=resumption)

    def retry(self, reason: Reason, after_s: float) -> Record:
        """The record that it was lost for ``reason``, and that its request is tried again."""
        retry = Retry(request_id=self.request_id, attempt_id=self.attempt_id, reason=reason, after_s=after_s)
        return Record(decision=retry)

    def dispatched(self, expected_s: float = 0.0) -> signals.Dispatched:
        """The signal that it was sent, and when its first token is expected."""
        return signals.Dispatched(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            replica_id=self.replica_id,
            work_tokens=self.work_tokens,
            at_s=self.sent_at_s,
            expected_s=expected_s,
        )

    def gave_first_token(self, now_s: float) -> signals.FirstToken:
        """The signal that its first token came."""
        return signals.FirstToken(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            replica_id=self.replica_id,
            latency_s=now_s - self.sent_at_s,
            at_s=now_s,
        )

    def completed(self, output_tokens: int, now_s: float) -> signals.Completed:
        """The signal that it did all it was sent for."""
        return signals.Completed(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            replica_id=self.replica_id,
            latency_s=now_s - self.sent_at_s,
            output_tokens=output_tokens,
            at_s=now_s,
        )

    def failed(self, reason: Reason, now_s: float) -> signals.Failed:
        """The signal that it ended in an error."""
        return signals.Failed(
            request_id=self.request_id,
            attempt_id=self.attempt_id,
            replica_id=self.replica_id,
            reason=reason,
            at_s=now_s,
        )

    def cancelled(self, now_s: float) -> signals.Cancelled:
        """The signal that it ended because it was not needed, or its slot was wanted."""
        return signals.Cancelled(
            request_id=self.request_id, attempt_id=self.attempt_id, replica_id=self.replica_id, at_s=now_s
        )

    def superseded(self, now_s: float) -> signals.Superseded:
        """The signal that it ended because another attempt of its stage has won, or computes the prompt they share."""
        return signals.Superseded(
            request_id=self.request_id, attempt_id=self.attempt_id, replica_id=self.replica_id, at_s=now_s
        )


PROGRESS_TOKENS = 16
"""An attempt that has emitted so many tokens has got its request further, whatever becomes of it then."""
FAILOVER_REASONS = frozenset({Reason.REPLICA_LOST, Reason.KV_TRANSFER_FAILED, Reason.ENGINE_ERROR})
"""Failures that may not be the request's own: another replica may serve it."""


class Request(msgspec.Struct, kw_only=True, gc=False):
    """One request on its way through the stages of its plan.

    Args:
        view: The request as policies see it: what is left of it, when part of the answer has been emitted and it is
            resumed elsewhere.
        plan: Its stages.
        stage: The one that it is in.
        stage_index: Where in the plan that is.
        deadline_token: Names the timer of its deadline.
        home: The replica that it waits for; empty: whichever has room first.
        home_tokens: Prompt tokens that it would compute there.
        state: Where it is.
        answer: How much of its answer its client has.
        output_time_limit_s: How long after its first token its answer ends with what there is of it.
        permits: What the policies that let it in have given to it.
        kv_from: The finished prefill whose blocks the decode pulls.
        kv_replica_id: The replica that holds them.
        kv_until_s: Until when a decode may be sent for them; endless where there are none.
        has_idle_kv: Whether they are held for sure: no decode has been sent, or those that were have pulled nothing.
        num_pulls: Decodes that were sent for them.
        committed: The attempt whose tokens are the answer, once there is one.
        num_sent: Attempts so far.
        num_first_tries: Those at the first stage that count: not second ones beside another, nor those before a
            preemption.
        num_later_tries: The same at the stage after it, where there is one.
        num_retries: How often it was tried again after a loss, before anything of the answer was emitted.
        lost_beside: The attempt that was lost while another of its stage was beside it, and how, until the next one
            is sent that is beside none.
        lost_by: Why it was lost, while it backs off.
        num_preemptions: How often it was preempted.
        num_emitted: Tokens of the answer that attempts before the current one have emitted.
        open_attempts: Attempts that have not ended, by id.
        failed_replicas: Replicas that lost an attempt of this stage, or whose engines failed on one; not tried again.
        erred_on: The latter with their stages, until another one does what they did not.
        lost_with: Replicas that were lost with an attempt of it, or stood still, since it last got further; and the
            stage of that.
    """

    view: RequestView
    plan: Plan
    stage: Role
    stage_index: int = 0
    deadline_token: str
    home: str = ""
    home_tokens: int = 0
    state: RequestState = RequestState.ADMITTED
    answer: AnswerState = AnswerState.NONE
    output_time_limit_s: float = math.inf
    permits: Permits = NO_PERMITS
    kv_from: str | None = None
    kv_replica_id: str = ""
    kv_until_s: float = math.inf
    has_idle_kv: bool = False
    num_pulls: int = 0
    committed: str | None = None
    num_sent: int = 0
    num_first_tries: int = 0
    num_later_tries: int = 0
    num_retries: int = 0
    lost_beside: tuple[Attempt, AttemptFailed] | None = None
    lost_by: Reason | None = None
    num_preemptions: int = 0
    num_emitted: int = 0
    open_attempts: dict[str, Attempt] = msgspec.field(default_factory=dict)
    failed_replicas: frozenset[str] = frozenset()
    erred_on: frozenset[tuple[Role, str]] = frozenset()
    lost_with: frozenset[tuple[Role, str]] = frozenset()
    _before: RequestView | None = None

    @staticmethod
    def begin(
        view: RequestView, plan: Plan, output_time_limit_s: float = math.inf, permits: Permits = NO_PERMITS
    ) -> "Request":
        """A request at the first stage of its plan."""
        deadline_token = f"{view.request_id}:deadline"
        return Request(
            view=view,
            plan=plan,
            stage=plan[0],
            deadline_token=deadline_token,
            output_time_limit_s=output_time_limit_s,
            permits=permits,
        )

    @property
    def output_time_limit_token(self) -> str:
        """Names the timer after which its answer ends."""
        return f"{self.view.request_id}:output_time_limit"

    @property
    def retry_token(self) -> str:
        """Names the timer after which it is tried again."""
        return f"{self.view.request_id}:retry"

    # -- steps --------------------------------------------------------------------------------------------------------

    def enqueue(self) -> tuple[CancelTimer, ...]:
        """It is about to be enqueued: nothing else is to bring it there any more."""
        return self._settle_down(RequestStep.ENQUEUE)

    def follow(self) -> tuple[CancelTimer, ...]:
        """It waits until another one with its prompt has got further, and nothing else brings it into a queue."""
        return self._settle_down(RequestStep.FOLLOW)

    def _settle_down(self, step: RequestStep) -> tuple[CancelTimer, ...]:
        self._step(step)
        self.stop_resuming()
        if self.lost_by is None:
            return ()
        self.lost_by = None
        return (CancelTimer(token=self.retry_token),)

    def wait_for(self, replica_id: str, prefill_tokens: int) -> None:
        """It waits for one replica, or, where that is empty, for any."""
        self.home, self.home_tokens = replica_id, prefill_tokens

    def send(
        self,
        replica_id: str,
        cached_tokens: int,
        now_s: float,
        *,
        tied_to: str | None = None,
        load_tokens: int | None = None,
    ) -> Attempt:
        """The next attempt at the current stage, counted and open, on a replica that has part of the prompt cached, and
        its adapter unless that has to be loaded, which takes as long as so many tokens of a prompt.
        """
        self._step(RequestStep.SEND)
        view, stage = self.view, self.stage
        prompt_tokens = 0 if stage is Role.DECODE else max(1, view.prompt_tokens - cached_tokens)
        attempt = Attempt(
            attempt_id=f"{view.request_id}.{self.num_sent}",
            request_id=view.request_id,
            stage=stage,
            replica_id=replica_id,
            prefill_tokens=(load_tokens or 0) + prompt_tokens,
            kv_tokens=0 if stage is Role.PREFILL else view.kv_tokens,
            kv_blocks=() if stage is Role.PREFILL else view.prefix_blocks,
            kv_block_tokens=view.prefix_block_tokens,
            sent_at_s=now_s,
            kv_from=self.kv_from,
            tied_to=tied_to,
            adapter=view.adapter,
            load_tokens=load_tokens or 0,
            has_adapter=load_tokens is None,
            is_hedge=bool(self.open_attempts) and self.active_attempt() is not None,
        )
        self.num_sent += 1
        self.has_idle_kv = False
        self.num_pulls += self.kv_from is not None
        if not attempt.is_hedge:
            self._count_tries(1)
            self.lost_beside = None
        self.open_attempts[attempt.attempt_id] = attempt
        return attempt

    def back_off(self, reason: Reason, until_s: float) -> SetTimer:
        """It was lost, and is enqueued again later."""
        self._step(RequestStep.BACK_OFF)
        self.lost_by = reason
        return SetTimer(token=self.retry_token, at_s=until_s)

    def end_back_off(self) -> Reason | None:
        """Its retry timer has fired: what it was lost by; none if it has been enqueued for another reason."""
        reason, self.lost_by = self.lost_by, None
        return reason

    def be_answered(self) -> list[CancelTimer]:
        """Its client gets the verdict; what stops its timers."""
        self._step(RequestStep.ANSWER)
        timers = [CancelTimer(token=self.deadline_token)]
        if self.output_time_limit_s < math.inf and self.answer is not AnswerState.NONE:
            timers.append(CancelTimer(token=self.output_time_limit_token))
        if self.lost_by:
            timers.append(CancelTimer(token=self.retry_token))
        return timers

    def close(self, attempt: Attempt) -> None:
        """One of its attempts has ended."""
        attempt.close()
        del self.open_attempts[attempt.attempt_id]

    def _step(self, step: RequestStep) -> None:
        self.state = REQUEST_TRANSITIONS.get((self.state, step)) or refuse(self.view.request_id, self.state, step)

    def _step_answer(self, step: AnswerStep) -> None:
        self.answer = ANSWER_TRANSITIONS.get((self.answer, step)) or refuse(self.view.request_id, self.answer, step)

    # -- its answer ---------------------------------------------------------------------------------------------------

    def _commit(self, attempt: Attempt, now_s: float) -> tuple[Commit | SetTimer | Truncate, ...]:
        """An attempt's tokens are the answer: with the first of all its time begins, unless it is up already."""
        begins = self.answer is AnswerState.NONE
        self._step_answer(AnswerStep.COMMIT)
        self.committed = attempt.attempt_id
        commit = Commit(request_id=attempt.request_id, attempt_id=attempt.attempt_id)
        if self.answer is AnswerState.OVERDUE:
            return (commit, *self.truncate())
        if self.output_time_limit_s == math.inf or not begins:
            return (commit,)
        return (commit, SetTimer(token=self.output_time_limit_token, at_s=now_s + self.output_time_limit_s))

    def truncate(self) -> tuple[Truncate, ...]:
        """Its time is up: what ends its answer where it is, at once or as soon as an attempt gives it again."""
        attempt = self.open_attempts.get(self.committed) if self.committed else None
        if attempt is None or attempt.state not in UNDER_WAY:
            self._step_answer(AnswerStep.TIME_UP)
            return ()
        self._step_answer(AnswerStep.TRUNCATE)
        return (Truncate(attempt_id=attempt.attempt_id),)

    # -- what is known of it ------------------------------------------------------------------------------------------

    @property
    def is_answered(self) -> bool:
        """Whether the client has the verdict."""
        return self.state is RequestState.ANSWERED

    @property
    def is_answering(self) -> bool:
        """Whether its client has part of the answer, or is about to get it."""
        return self.answer is not AnswerState.NONE

    @property
    def is_truncated(self) -> bool:
        """Whether its time was up, so that its answer ends where it is."""
        return self.answer is AnswerState.TRUNCATED

    @property
    def is_last_stage(self) -> bool:
        return self.stage_index == len(self.plan) - 1

    @property
    def whole_request(self) -> RequestView:
        """The request as it was before anything of the answer was emitted."""
        return self._before or self.view

    def goes_back_after(self, reason: Reason) -> bool:
        """Whether a loss of its decode takes it back to its prompt: blocks that may have been pulled may be freed."""
        return self.kv_from is not None and (reason is Reason.KV_TRANSFER_FAILED or not self.has_idle_kv)

    def tries_after(self, reason: Reason) -> int:
        """Attempts that count, at the stage that a loss would have repeated, or at the first one where all would be."""
        own = self.num_later_tries if self.stage_index else self.num_first_tries
        if self.is_answering or self.goes_back_after(reason):
            return max(own, self.num_first_tries)
        return own

    def ended(self, outcome: Outcome, output_tokens: int, now_s: float) -> signals.Ended:
        """The signal that tells of its verdict."""
        is_completed = outcome.kind is OutcomeKind.COMPLETED
        return signals.Ended(
            request=self.whole_request, is_completed=is_completed, output_tokens=output_tokens, at_s=now_s
        )

    def is_active(self, attempt: Attempt) -> bool:
        """Whether an open attempt is one of the current stage, and under way."""
        return attempt.stage is self.stage and attempt.state in UNDER_WAY

    def active_attempt(self) -> Attempt | None:
        """An attempt at the current stage that is under way; of two, the earlier one."""
        return next((each for each in self.open_attempts.values() if self.is_active(each)), None)

    def win(self, attempt: Attempt, now_s: float) -> list[Effect]:
        """An attempt wins its stage: its rivals are superseded, and in the last stage its tokens are the answer."""
        effects: list[Effect] = []
        if beaten := self._beaten_by(attempt):
            effects.append(attempt.race(beaten))
            effects += [rival.supersede() for rival in beaten]
        if self.is_last_stage:
            effects += self._commit(attempt, now_s)
        return effects

    def _beaten_by(self, winner: Attempt) -> list[Attempt]:
        """The other attempts of its stage that are under way; those that were to be resumed later are not any more."""
        if len(self.open_attempts) == 1 and winner.attempt_id in self.open_attempts:
            return []
        self.stop_resuming(but=winner)
        return [each for each in self.open_attempts.values() if each is not winner and self.is_active(each)]

    def held_up_by(self, attempt: Attempt, replica_id: str) -> Reason | None:
        """What it would be for one of its attempts if a replica that stands still were lost; none: nothing."""
        if attempt.replica_id == replica_id:
            return Reason.REPLICA_LOST
        waits_for_kv = attempt.stage is Role.DECODE and attempt.state is AttemptState.SENT
        return Reason.KV_TRANSFER_FAILED if waits_for_kv and self.kv_replica_id == replica_id else None

    def can_recover(self, reason: Reason) -> bool:
        """Whether another replica may do what a failed attempt did not; an answer is resumed from what is emitted."""
        if self.committed is None:
            return reason in FAILOVER_REASONS
        is_lost = reason is Reason.REPLICA_LOST or (reason is Reason.KV_TRANSFER_FAILED and self.stage is Role.DECODE)
        return is_lost and self.view.is_resumable and not self.is_truncated

    # -- its way through the plan -------------------------------------------------------------------------------------

    def revise(self, view: RequestView) -> None:
        """It is in another lane now, or costs something else."""
        self.view = view

    def enter_next_stage(self, prefill: Attempt, place: tuple[str, ...], kv_until_s: float) -> None:
        """The decode follows, from the blocks that ``prefill`` left on a replica at ``place``."""
        self._enter(self.stage_index + 1, prefill.attempt_id)
        self.kv_replica_id, self.kv_until_s, self.has_idle_kv = prefill.replica_id, kv_until_s, True
        if place != self.view.kv_place:
            self.view = self.view.held_at(place)

    @property
    def rest_of_plan(self) -> Plan:
        """The stages that it has not been through."""
        return self.plan[self.stage_index :]

    def can_pull(self, now_s: float) -> bool:
        """Whether the blocks that its stage begins with, if any, are held for long enough."""
        return now_s < self.kv_until_s

    def leave_kv(self, decode: Attempt) -> None:
        """An attempt that was to pull its blocks does not."""
        self.has_idle_kv = self.kv_from is not None and decode.kv_from == self.kv_from

    def give_kv_up(self, via: str) -> ReleaseKv:
        """Its blocks are not needed any more; what has them freed, by way of a decode replica."""
        assert self.kv_from is not None, "blocks that are idle are held"
        self.has_idle_kv = False
        return ReleaseKv(request_id=self.view.request_id, kv_from=self.kv_from, replica_id=via)

    def go_by(self, plan: Plan) -> Record:
        """It starts over by another plan, and still avoids who has failed on it; the record of that."""
        replan = Replan(request_id=self.view.request_id, plan=plan, instead_of=self.rest_of_plan)
        failed_replicas = self.failed_replicas
        self.plan = plan
        self._enter(0, None)
        self.failed_replicas = failed_replicas
        return Record(decision=replan)

    def start_over(self) -> str:
        """Back to the first stage: the blocks are gone. Returns the replica that held them."""
        self._enter(0, None)
        return self.kv_replica_id

    def resume(self, rest: RequestView, output_tokens: int) -> None:
        """Back to the first stage, with ``output_tokens`` more emitted and ``rest`` left to do."""
        self._before = self.whole_request
        self.view = rest
        self.num_emitted += output_tokens
        self.committed = None
        self._enter(0, None)

    def resume_preempted(self, rest: RequestView, output_tokens: int) -> None:
        """The same after a preemption, which is not held against its attempts; it happens once for all of them."""
        self.resume(rest, output_tokens)
        self.num_preemptions += 1
        self.num_first_tries = self.num_later_tries = 0

    def stop_resuming(self, but: Attempt | None = None) -> None:
        """Its preempted attempts, but one, are not resumed when they have ended: something else takes their place."""
        for each in self.open_attempts.values():
            if each.state in PREEMPTED and each is not but:
                each.cancel()

    def lose(self, attempt: Attempt, event: AttemptFailed) -> None:
        """An attempt was lost while another of its stage is under way."""
        self.lost_beside = attempt, event

    def avoid(self, *replica_ids: str) -> None:
        """These lost an attempt of the current stage, and no others; not tried again."""
        self.failed_replicas = frozenset(replica_ids)

    def avoid_too(self, replica_id: str) -> None:
        """This one lost an attempt of the current stage, too."""
        self.failed_replicas |= {replica_id}

    def err_on(self, attempt: Attempt) -> None:
        """The engine of this one's replica has failed on it: its own fault, or the replica's."""
        self.avoid_too(attempt.replica_id)
        self.erred_on |= {(attempt.stage, attempt.replica_id)}

    def be_cleared(self, winner: Attempt) -> frozenset[str]:
        """This attempt did what others did not, at its stage or, with the answer, in all: it was their replicas'."""
        cleared = frozenset(each for each in self.erred_on if self.is_last_stage or each[0] is winner.stage)
        self.erred_on -= cleared
        return frozenset(replica_id for _, replica_id in cleared)

    def lose_with(self, attempt: Attempt) -> None:
        """The replica of this attempt, which had got it no further, was lost or stands still."""
        self.lost_with |= {(attempt.stage, attempt.replica_id)}

    def num_fruitless_losses(self, stage: Role) -> int:
        """Replicas that were lost with it at a stage since it last got further."""
        return sum(each is stage for each, _ in self.lost_with)

    def emit(self, output_tokens: int) -> None:
        """One of its attempts has ended with so many tokens emitted: if that is progress, all tries are before it."""
        if output_tokens >= PROGRESS_TOKENS:
            self.num_first_tries = self.num_later_tries = 0
            self.lost_with = frozenset()

    def count_free(self) -> None:
        """One of its attempts was undone through no fault of a replica's."""
        self._count_tries(-1)

    def count_retry(self) -> None:
        """It is tried again, with nothing of the answer emitted."""
        self.num_retries += 1

    def _count_tries(self, number: int) -> None:
        if self.stage_index:
            self.num_later_tries += number
        else:
            self.num_first_tries += number

    def _enter(self, stage_index: int, kv_from: str | None) -> None:
        self.stage_index = stage_index
        self.stage = self.plan[stage_index]
        self.kv_from = kv_from
        self.has_idle_kv, self.num_pulls, self.kv_until_s = False, 0, math.inf
        self.failed_replicas = frozenset(replica_id for stage, replica_id in self.erred_on if stage is self.stage)
        self.lost_beside = None

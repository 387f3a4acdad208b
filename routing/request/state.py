"""What the dispatcher knows of one request between its arrival and its last attempt's end."""

import math

import msgspec

from policies.decisions import Reason
from policies.signals import Ended
from policies.views import RequestView, Role
from routing.request.attempt import Attempt
from routing.request.effects import CancelTimer, Commit, Outcome, OutcomeKind, SetTimer, Truncate
from routing.request.events import AttemptFailed
from routing.request.stages import Plan

FAILOVER_REASONS = frozenset({Reason.REPLICA_LOST, Reason.KV_TRANSFER_FAILED})
"""Failures that say nothing against the request itself: another replica may serve it."""


class RequestState(msgspec.Struct, kw_only=True, gc=False):
    """One request's progress through its plan.

    Args:
        request: The request: what is left of it, when part of the answer has been emitted and it is resumed elsewhere.
        plan: Its stages.
        stage: The one that it is in.
        stage_index: Where in the plan that is.
        deadline_token: Names the timer of its deadline.
        output_time_limit_s: How long after its first token its answer ends with what there is of it.
        kv_from: The finished prefill whose blocks the decode pulls.
        kv_replica_id: The replica that holds them.
        committed: The attempt whose tokens are the answer, once there is one.
        is_truncated: Whether its time is up, so that its answer ends where it is.
        is_overdue: Whether its time was up while no attempt gave its answer.
        is_answering: Whether its client has part of the answer, or is about to get it.
        is_answered: Whether the client has been told how it ended.
        num_sent: Attempts so far.
        num_free: How many of them do not count: second ones beside another, and those before a preemption.
        num_retries: How often it was tried again after a loss, before anything of the answer was emitted.
        lost_beside: The attempt of this stage that was lost while another was beside it, and how.
        backing_off: Why it was lost, while it waits to be tried again and is in no queue.
        num_preemptions: How often it was preempted.
        num_emitted: Tokens of the answer that attempts before the current one have emitted.
        open_attempts: Attempts that have not ended, by id.
        failed_replicas: Replicas that lost an attempt of this stage; not tried again.
    """

    request: RequestView
    plan: Plan
    stage: Role
    stage_index: int = 0
    deadline_token: str
    output_time_limit_s: float = math.inf
    kv_from: str | None = None
    kv_replica_id: str = ""
    committed: str | None = None
    is_truncated: bool = False
    is_overdue: bool = False
    is_answering: bool = False
    is_answered: bool = False
    num_sent: int = 0
    num_free: int = 0
    num_retries: int = 0
    lost_beside: tuple[Attempt, AttemptFailed] | None = None
    backing_off: Reason | None = None
    num_preemptions: int = 0
    num_emitted: int = 0
    open_attempts: dict[str, Attempt] = msgspec.field(default_factory=dict)
    failed_replicas: frozenset[str] = frozenset()
    _before: RequestView | None = None

    @classmethod
    def begin(cls, request: RequestView, plan: Plan, output_time_limit_s: float = math.inf) -> "RequestState":
        """A request at the first stage of its plan."""
        deadline_token = f"{request.request_id}:deadline"
        return cls(
            request=request,
            plan=plan,
            stage=plan[0],
            deadline_token=deadline_token,
            output_time_limit_s=output_time_limit_s,
        )

    @property
    def output_time_limit_token(self) -> str:
        """Names the timer after which its answer ends."""
        return f"{self.request.request_id}:output_time_limit"

    @property
    def retry_token(self) -> str:
        """Names the timer after which it is tried again."""
        return f"{self.request.request_id}:retry"

    def enqueue(self) -> tuple[CancelTimer, ...]:
        """It is about to be enqueued: nothing else is to bring it there any more."""
        for each in self.open_attempts.values():
            each.is_preempted = False
        if self.backing_off is None:
            return ()
        self.backing_off = None
        return (CancelTimer(token=self.retry_token),)

    def commit(self, attempt: Attempt, now_s: float) -> tuple[Commit | SetTimer | Truncate, ...]:
        """An attempt's tokens are the answer: with the first of all its time begins, unless it is up already."""
        begins, self.is_answering = not self.is_answering, True
        self.committed = attempt.attempt_id
        commit = Commit(request_id=attempt.request_id, attempt_id=attempt.attempt_id)
        if self.is_overdue:
            return (commit, *self.truncate())
        if self.output_time_limit_s == math.inf or not begins:
            return (commit,)
        return (commit, SetTimer(token=self.output_time_limit_token, at_s=now_s + self.output_time_limit_s))

    def timers_to_cancel(self) -> list[CancelTimer]:
        """What is not waited for any more once it is answered."""
        timers = [CancelTimer(token=self.deadline_token)]
        if self.output_time_limit_s < math.inf and self.is_answering:
            timers.append(CancelTimer(token=self.output_time_limit_token))
        if self.backing_off:
            timers.append(CancelTimer(token=self.retry_token))
        return timers

    def truncate(self) -> tuple[Truncate, ...]:
        """Its time is up: what ends its answer where it is, at once or as soon as an attempt gives it again."""
        attempt = self.open_attempts.get(self.committed) if self.committed else None
        if attempt is None or attempt.is_cancelled:
            self.is_overdue = True
            return ()
        self.is_truncated = True
        return (Truncate(attempt_id=attempt.attempt_id),)

    @property
    def is_last_stage(self) -> bool:
        return self.stage_index == len(self.plan) - 1

    @property
    def whole_request(self) -> RequestView:
        """The request as it was before anything of the answer was emitted."""
        return self._before or self.request

    @property
    def num_tries(self) -> int:
        """Attempts, less second ones beside another and those that were undone by a preemption."""
        return self.num_sent - self.num_free

    @property
    def is_done(self) -> bool:
        """Answered, and every slot given back."""
        return self.is_answered and not self.open_attempts

    def new_attempt(self, replica_id: str, cached_tokens: int, now_s: float, *, tied_to: str | None = None) -> Attempt:
        """The next attempt at the current stage, counted and open, on a replica that has part of the prompt cached."""
        request, stage = self.request, self.stage
        attempt = Attempt(
            attempt_id=f"{request.request_id}.{self.num_sent}",
            request_id=request.request_id,
            stage=stage,
            replica_id=replica_id,
            prefill_tokens=0 if stage is Role.DECODE else max(1, request.prompt_tokens - cached_tokens),
            kv_tokens=0 if stage is Role.PREFILL else request.kv_tokens,
            sent_at_s=now_s,
            kv_from=self.kv_from,
            tied_to=tied_to,
            is_hedge=self.has_active_attempt(),
        )
        self.num_sent += 1
        self.num_free += attempt.is_hedge
        self.open_attempts[attempt.attempt_id] = attempt
        return attempt

    def ended(self, outcome: Outcome, output_tokens: int, now_s: float) -> Ended:
        """The signal that tells of its verdict."""
        is_completed = outcome.kind is OutcomeKind.COMPLETED
        return Ended(request=self.whole_request, is_completed=is_completed, output_tokens=output_tokens, at_s=now_s)

    def is_active(self, attempt: Attempt) -> bool:
        """Whether an open attempt is one of the current stage that nobody has cancelled."""
        return attempt.stage is self.stage and not attempt.is_cancelled

    def rivals_of(self, winner: Attempt) -> list[Attempt]:
        """The other attempts of its stage that are under way; those that were to be resumed later are not any more."""
        if len(self.open_attempts) == 1 and winner.attempt_id in self.open_attempts:
            return []
        others = [each for each in self.open_attempts.values() if each is not winner]
        for other in others:
            other.is_preempted = False
        return [each for each in others if self.is_active(each)]

    def active_attempt(self) -> Attempt | None:
        """An attempt at the current stage that is under way; of two, the earlier one."""
        return next((each for each in self.open_attempts.values() if self.is_active(each)), None)

    def has_active_attempt(self) -> bool:
        """Whether the current stage is under way."""
        return bool(self.open_attempts) and self.active_attempt() is not None

    def enter_next_stage(self, prefill: Attempt) -> None:
        """The decode follows, from the blocks that ``prefill`` left."""
        self._enter(self.stage_index + 1, prefill.attempt_id)
        self.kv_replica_id = prefill.replica_id

    def start_over(self) -> str:
        """Back to the first stage: the blocks are gone. Returns the replica that held them."""
        self._enter(0, None)
        return self.kv_replica_id

    def can_recover(self, reason: Reason) -> bool:
        """Whether another replica may do what a failed attempt did not; an answer is resumed from what is emitted."""
        if self.committed is None:
            return reason in FAILOVER_REASONS
        return reason is Reason.REPLICA_LOST and self.request.is_resumable and not self.is_truncated

    def resume(self, rest: RequestView, output_tokens: int) -> None:
        """Back to the first stage, with ``output_tokens`` more emitted and ``rest`` left to do."""
        self._before = self.whole_request
        self.request = rest
        self.num_emitted += output_tokens
        self.committed = None
        self._enter(0, None)

    def requeue_preempted(self, rest: RequestView, output_tokens: int) -> None:
        """The same after a preemption, which is not held against its attempts; it happens once for all of them."""
        self.resume(rest, output_tokens)
        self.num_preemptions += 1
        self.num_free = self.num_sent

    def _enter(self, stage_index: int, kv_from: str | None) -> None:
        self.stage_index = stage_index
        self.stage = self.plan[stage_index]
        self.kv_from = kv_from
        self.failed_replicas = frozenset()
        self.lost_beside = None

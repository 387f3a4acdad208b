"""What the dispatcher knows of one request between its arrival and its last attempt's end."""

import msgspec

from policies.decisions import Reason
from policies.signals import Ended
from policies.views import RequestView, Role
from routing.attempts import Attempt
from routing.effects import Outcome, OutcomeKind
from routing.stages import Plan

FAILOVER_REASONS = frozenset({Reason.REPLICA_LOST, Reason.KV_TRANSFER_FAILED})
"""Failures that say nothing against the request itself: another replica may serve it."""


class RequestLife(msgspec.Struct, kw_only=True, gc=False):
    """One request's progress through its plan.

    Args:
        request: The request.
        plan: Its stages.
        stage: The one that it is in.
        stage_index: Where in the plan that is.
        deadline_token: Names the timer of its deadline.
        kv_from: The finished prefill whose blocks the decode pulls.
        kv_replica_id: The replica that holds them.
        committed: The attempt whose tokens are the answer, once there is one.
        is_answered: Whether the client has been told how it ended.
        num_sent: Attempts so far.
        open_attempts: Attempts that have not ended, by id.
        failed_replicas: Replicas that lost an attempt of this stage; not tried again.
    """

    request: RequestView
    plan: Plan
    stage: Role
    stage_index: int = 0
    deadline_token: str
    kv_from: str | None = None
    kv_replica_id: str = ""
    committed: str | None = None
    is_answered: bool = False
    num_sent: int = 0
    open_attempts: dict[str, Attempt] = msgspec.field(default_factory=dict)
    failed_replicas: frozenset[str] = frozenset()

    @classmethod
    def begin(cls, request: RequestView, plan: Plan) -> "RequestLife":
        """A request at the first stage of its plan."""
        return cls(request=request, plan=plan, stage=plan[0], deadline_token=f"{request.request_id}:deadline")

    @property
    def is_last_stage(self) -> bool:
        return self.stage_index == len(self.plan) - 1

    @property
    def is_done(self) -> bool:
        """Answered, and every slot given back."""
        return self.is_answered and not self.open_attempts

    def new_attempt(self, replica_id: str, cached_tokens: int, now_s: float) -> Attempt:
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
        )
        self.num_sent += 1
        self.open_attempts[attempt.attempt_id] = attempt
        return attempt

    def ended(self, outcome: Outcome, output_tokens: int, now_s: float) -> Ended:
        """The signal that tells of its verdict."""
        is_completed = outcome.kind is OutcomeKind.COMPLETED
        return Ended(request=self.request, is_completed=is_completed, output_tokens=output_tokens, at_s=now_s)

    def is_active(self, attempt: Attempt) -> bool:
        """Whether an open attempt is one of the current stage that nobody has cancelled."""
        return attempt.stage is self.stage and not attempt.is_cancelled

    def has_active_attempt(self) -> bool:
        """Whether the current stage is under way."""
        return bool(self.open_attempts) and any(self.is_active(each) for each in self.open_attempts.values())

    def enter_next_stage(self, prefill: Attempt) -> None:
        """The decode follows, from the blocks that ``prefill`` left."""
        self._enter(self.stage_index + 1, prefill.attempt_id)
        self.kv_replica_id = prefill.replica_id

    def start_over(self) -> str:
        """Back to the first stage: the blocks are gone. Returns the replica that held them."""
        self._enter(0, None)
        return self.kv_replica_id

    def _enter(self, stage_index: int, kv_from: str | None) -> None:
        self.stage_index = stage_index
        self.stage = self.plan[stage_index]
        self.kv_from = kv_from
        self.failed_replicas = frozenset()

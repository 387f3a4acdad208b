"""What the dispatcher knows of one request between its arrival and its last attempt's end."""

from dataclasses import dataclass, field

from policies.views import RequestView, Role
from routing.attempts import Attempt
from routing.planning import Plan


@dataclass(slots=True, kw_only=True)
class RequestLife:
    """One request's progress through its plan.

    Args:
        request: The request.
        plan: Its stages.
        stage_index: Which stage it is in.
        kv_from: The finished prefill whose blocks the decode pulls.
        committed: The attempt whose tokens are the answer, once there is one.
        is_answered: Whether the client has been told how it ended.
        num_sent: Attempts so far.
        open_attempts: Attempts that have not ended, by id.
        failed_replicas: Replicas that lost an attempt of this stage; not tried again.
    """

    request: RequestView
    plan: Plan
    stage_index: int = 0
    kv_from: str | None = None
    committed: str | None = None
    is_answered: bool = False
    num_sent: int = 0
    open_attempts: dict[str, Attempt] = field(default_factory=dict)
    failed_replicas: frozenset[str] = frozenset()

    @property
    def stage(self) -> Role:
        return self.plan[self.stage_index]

    @property
    def is_last_stage(self) -> bool:
        return self.stage_index == len(self.plan) - 1

    @property
    def is_done(self) -> bool:
        """Answered, and every slot given back."""
        return self.is_answered and not self.open_attempts

    @property
    def deadline_token(self) -> str:
        """Names the timer of its deadline."""
        return f"{self.request.request_id}:deadline"

    def new_attempt(self, replica_id: str, now_s: float) -> Attempt:
        """The next attempt at the current stage, counted and open."""
        request, stage = self.request, self.stage
        attempt = Attempt(
            attempt_id=f"{request.request_id}.{self.num_sent}",
            request_id=request.request_id,
            stage=stage,
            replica_id=replica_id,
            work_tokens=request.prompt_tokens if stage is Role.PREFILL else request.kv_tokens,
            sent_at_s=now_s,
            kv_from=self.kv_from,
        )
        self.num_sent += 1
        self.open_attempts[attempt.attempt_id] = attempt
        return attempt

    def active_attempts(self) -> list[Attempt]:
        """Open attempts of the current stage that nobody has cancelled."""
        stage = self.stage
        return [each for each in self.open_attempts.values() if each.stage is stage and not each.is_cancelled]

    def enter_next_stage(self, prefill: Attempt) -> None:
        """The decode follows, from the blocks that ``prefill`` left."""
        self.stage_index += 1
        self.kv_from = prefill.attempt_id
        self.failed_replicas = frozenset()

    def start_over(self) -> None:
        """Back to the first stage: the blocks are gone."""
        self.stage_index = 0
        self.kv_from = None
        self.failed_replicas = frozenset()

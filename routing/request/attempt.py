"""Attempts: the single dispatches that a request leads to."""

from collections.abc import Sequence

import msgspec

from policies import signals
from policies.decisions import Reason
from policies.views import Role
from routing.request.effects import Demotion, Placement, Preemption, Race, Record, Resumption, Retry, Send


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One dispatch of one stage of one request to one replica.

    Args:
        attempt_id: ``<request id>.<n>``, n counting from 0 within the request.
        request_id: The request.
        stage: What runs.
        replica_id: Where it holds a slot; follows the replica that really accepted it.
        prefill_tokens: Prompt tokens that it still has to compute; 0 from its first token on.
        kv_tokens: KV tokens that it is expected to hold at its longest.
        sent_at_s: When it was sent.
        kv_from: For a decode, the prefill attempt whose blocks it pulls.
        tied_to: The attempt beside it with which it shares an execution claim.
        is_hedge: Whether it was sent beside another one of the same stage.
        has_first_token: Whether its first token has come.
        is_cancelled: Whether a ``Cancel`` was asked for.
        is_superseded: Whether that was because another attempt of the same stage won.
        is_preempted: Whether that was because its slot was wanted; its request is to be resumed.
    """

    attempt_id: str
    request_id: str
    stage: Role
    replica_id: str
    prefill_tokens: int
    kv_tokens: int
    sent_at_s: float
    kv_from: str | None = None
    tied_to: str | None = None
    is_hedge: bool = False
    has_first_token: bool = False
    is_cancelled: bool = False
    is_superseded: bool = False
    is_preempted: bool = False

    @property
    def work_tokens(self) -> int:
        """What it adds to its replica's work."""
        return self.prefill_tokens + self.kv_tokens

    @property
    def is_given_up(self) -> bool:
        """Whether it was stopped because nobody needs it: what it says is not listened to."""
        return self.is_cancelled and not self.is_preempted

    @property
    def hedge_token(self) -> str:
        """Names the timer after which it is hedged."""
        return f"{self.attempt_id}:hedge"

    @property
    def ends_as(self) -> type[signals.Superseded | signals.Cancelled]:
        """Which signal follows when it has been stopped."""
        return signals.Superseded if self.is_superseded else signals.Cancelled

    def send(self, pool: str, lane_limits_tokens: tuple[int, ...]) -> Send:
        """The effect that starts it on its replica, which is one of ``pool``."""
        return Send(
            attempt_id=self.attempt_id,
            request_id=self.request_id,
            stage=self.stage,
            replica_id=self.replica_id,
            pool=pool,
            prefill_tokens=self.prefill_tokens,
            kv_tokens=self.kv_tokens,
            kv_from=self.kv_from,
            lane_limits_tokens=() if self.stage is Role.PREFILL else lane_limits_tokens,
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

    def stopped(self, now_s: float) -> signals.Superseded | signals.Cancelled:
        """The signal that it ended because it was cancelled."""
        return self.ends_as(
            request_id=self.request_id, attempt_id=self.attempt_id, replica_id=self.replica_id, at_s=now_s
        )

"""What becomes of a request whose attempt was lost: it is tried again elsewhere, or resumed there."""

from collections.abc import Sequence

from policies.attempt_views import LostAttempt
from policies.contracts import RetryPolicy
from policies.decisions import AGAIN_AT_ONCE, Again, GiveUp, Reason, RetryDecision
from policies.views import Role
from routing.attempts.handoff import Handoff
from routing.config.spec import DispatcherParams
from routing.fleet.fleet import Fleet
from routing.intake.intake import RequestClassifier
from routing.lanes.access import LaneAccess
from routing.request.effects import Effect
from routing.request.events import AttemptFailed
from routing.request.request import Attempt, Request


class Recovery:
    """Puts requests back on their way.

    Args:
        policy: Says whether and when a request is tried again of which nothing has been emitted. An answer that has
            begun is resumed at once, whatever the policy: its client is reading.
        request_classifier: Sizes up what is left of an answer.
        access: Which replicas a lane may use.
        handoff: What becomes of KV that was not pulled.
        fleet: All replicas.
        params: How many attempts a request has, and how many replicas may be lost with it.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        request_classifier: RequestClassifier,
        access: LaneAccess,
        handoff: Handoff,
        *,
        fleet: Fleet,
        params: DispatcherParams,
    ) -> None:
        self._policy = policy
        self._request_classifier = request_classifier
        self._access = access
        self._handoff = handoff
        self._fleet = fleet
        self._max_attempts = params.max_attempts
        self._max_fruitless_losses = params.max_fruitless_losses

    def decide(self, request: Request, attempt: Attempt, reason: Reason, now_s: float) -> RetryDecision:
        """Whether another attempt may follow one that failed for ``reason``, and when."""
        if not request.can_recover(reason):
            return GiveUp(may_retry=True)
        if reason is Reason.ENGINE_ERROR and len(request.erred_on) > 1:
            return GiveUp(may_retry=False)  # two engines have failed on it: it is its own fault
        if request.num_fruitless_losses(attempt.stage) >= self._max_fruitless_losses:
            return GiveUp(may_retry=False)  # they may have died of it
        if request.tries_after(reason) >= self._max_attempts:
            return GiveUp(may_retry=request.num_retries == 0)
        if request.is_answering:
            return AGAIN_AT_ONCE
        return self._policy.decide(request.view, _what_was_lost(request, attempt, reason), now_s)

    def prepare(
        self, request: Request, attempt: Attempt, event: AttemptFailed, again: Again, now_s: float
    ) -> Sequence[Effect]:
        """Has the request at the stage that it resumes with; after its first token, with the answer so far."""
        if request.committed is not None:
            return self._resume(request, attempt, event, now_s)
        released: Sequence[Effect] = ()
        if event.reason is Reason.KV_TRANSFER_FAILED:
            if self._handoff.can_pull_elsewhere(request, attempt, now_s):
                request.avoid(attempt.replica_id)
            else:
                request.avoid_too(attempt.replica_id)
                released = self._handoff.release(request, now_s)
                self._avoid(request, request.start_over(), now_s)
        elif request.goes_back_after(event.reason):
            request.start_over()
        if request.is_answering:
            return released
        request.count_retry()
        record = attempt.retry(event.reason, again.after_s)
        if again.after_s <= 0.0:
            return (*released, record)
        return *released, record, request.back_off(event.reason, now_s + again.after_s)

    def end_back_off(self, request: Request, now_s: float) -> Reason | None:
        """What the request was lost by that is to be enqueued again now; none if it has been enqueued for another
        reason.

        Where nobody else is left by now, the replica whose blocks were not to be had will do.
        """
        reason = request.end_back_off()
        if reason is Reason.KV_TRANSFER_FAILED:
            live = self._access.live(request.stage, request.view.lane, self._fleet, now_s)
            if all(each.replica_id in request.failed_replicas for each in live):
                request.avoid()
        return reason

    def _resume(self, request: Request, attempt: Attempt, event: AttemptFailed, now_s: float) -> Sequence[Effect]:
        """Back to the first stage, on any replica but the one that was lost; the answer so far is prompt now."""
        output_tokens = event.output_tokens
        request.resume(self._request_classifier.rest_of(request.view, output_tokens), output_tokens)
        if event.reason is Reason.KV_TRANSFER_FAILED:
            self._avoid(request, request.kv_replica_id, now_s)
        elif attempt.stalled_by is None:
            request.avoid(attempt.replica_id)
        return (attempt.resumption(output_tokens),)

    def _avoid(self, request: Request, held_by: str, now_s: float) -> None:
        """Somebody else than the replica whose blocks were not to be had, if there is anybody."""
        live = self._access.live(request.stage, request.view.lane, self._fleet, now_s)
        if any(each.replica_id != held_by for each in live):
            request.avoid(held_by)


def _what_was_lost(request: Request, attempt: Attempt, reason: Reason) -> LostAttempt:
    """A decode that is tried again pulls the same blocks where they are held; else all is to be computed."""
    has_blocks = attempt.stage is Role.DECODE and not request.goes_back_after(reason)
    tokens = 0 if has_blocks else request.view.geometry.uncached_tokens
    return LostAttempt(reason=reason, num_retries=request.num_retries, prefill_tokens=tokens)

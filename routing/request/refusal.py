"""How a refusal reaches the client."""

from zlib import crc32

from policies.decisions import Reason, Reject
from routing.request.effects import Outcome, OutcomeKind
from routing.request.request import Request

JITTER_FRACTION = 0.5
"""Clients that are refused together come back over so much longer than they were told, instead of together again."""


def refusal(request_id: str, verdict: Reject) -> Outcome:
    """The outcome, with a time to try again that differs from client to client and not from run to run."""
    spread = crc32(request_id.encode()) / 2**32
    retry_after_s = verdict.retry_after_s * (1.0 + JITTER_FRACTION * spread)
    return Outcome(
        kind=OutcomeKind.REFUSED, reason=verdict.reason, retry_after_s=retry_after_s, may_retry=verdict.may_retry
    )


def given_up(request: Request, reason: Reason, retry_after_s: float, *, may_retry: bool = True) -> Outcome:
    """A request of which nothing has been emitted is refused; any other has failed."""
    if request.is_answering:
        return Outcome(kind=OutcomeKind.FAILED, reason=reason, may_retry=may_retry)
    verdict = Reject(reason=reason, retry_after_s=retry_after_s, may_retry=may_retry)
    return refusal(request.view.request_id, verdict)

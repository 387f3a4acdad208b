"""What becomes of every way in which a completion can end."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from loadtests.drivers.answer_stream import AnswerStream
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind

MOST_CHARACTERS = 200
"""Of what a server says in a header or an error: some put a page of HTML there."""
COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
NO_VERDICT = Outcome(kind=OutcomeKind.FAILED)
"""Of a request about which nobody has said anything, so that there is no reason: it was neither answered nor
refused.
"""
_REASONS = {reason.value: reason for reason in Reason}
_REASONS_OF_STATUS = {
    429: Reason.ADMISSION_REJECTED,
    499: Reason.CLIENT_GONE,
    503: Reason.NO_REPLICA_AVAILABLE,
    504: Reason.DEADLINE_EXCEEDED,
}
Header = Callable[[str], str | None]
"""Looks a response header up by its name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a try ended.

    Args:
        outcome: Its outcome.
        error: What to count it under among the errors; empty for one that is none.
    """

    outcome: Outcome
    error: str = ""


def printable(text: str) -> str:
    """What a server says, in a form that can be kept and shown: short, and without control characters."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text[:MOST_CHARACTERS])


def refusal(status: int, header: Header, body: bytes) -> Ending:
    """Any status but 200."""
    code = _error_code(body)
    reason = _REASONS.get(code) or _REASONS_OF_STATUS.get(status)
    if reason is None:
        reason = Reason.INVALID_REQUEST if status < 500 else Reason.ENGINE_ERROR
    outcome = Outcome(
        kind=OutcomeKind.REFUSED,
        reason=reason,
        retry_after_s=_retry_after_s(header("retry-after")),
        may_retry=header("x-should-retry") != "false",
    )
    return Ending(outcome=outcome, error=f"HTTP {status} {code}".strip())


def ending_of(answer: AnswerStream) -> Ending:
    """What came of a stream that has ended by itself."""
    if answer.error is not None:  # some servers send [DONE] after it
        kind = OutcomeKind.FAILED if answer.events else OutcomeKind.REFUSED
        reason = _REASONS.get(str(answer.error.get("code")), Reason.ENGINE_ERROR)
        return Ending(outcome=Outcome(kind=kind, reason=reason), error=f"error event: {answer.error.get('message')}")
    if not answer.is_done:
        return Ending(outcome=NO_VERDICT, error="a stream ended without [DONE]")
    if not answer.events and not answer.output_tokens:
        return Ending(outcome=NO_VERDICT, error="a stream ended without any token")
    return Ending(outcome=COMPLETED)


def broken_off(error: Exception) -> Ending:
    """The connection broke or was never made, or something came that is no answer."""
    what = f"not a completion: {error}" if isinstance(error, msgspec.MsgspecError) else type(error).__name__
    return Ending(outcome=NO_VERDICT, error=what)


def _error_code(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["code"])
    except (msgspec.MsgspecError, LookupError, TypeError, RecursionError):
        return ""


def _retry_after_s(text: str | None) -> float:
    try:
        return max(0.0, float(text or "0"))
    except ValueError:  # a date; nobody here sends one
        return 0.0

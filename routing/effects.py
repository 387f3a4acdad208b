"""What the dispatcher asks of a host. Hosts carry effects out in order and decide nothing."""

from dataclasses import dataclass
from enum import StrEnum

from policies.decisions import Placement, Reason
from policies.views import Role


class OutcomeKind(StrEnum):
    """How a request ended. Every request ends in exactly one of these."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verdict on a request.

    Args:
        kind: ``REFUSED`` means before the first token, with nothing of the answer sent; ``FAILED`` after it.
        reason: Why, unless it completed.
        retry_after_s: For a refusal, when to try again, seconds from now.
    """

    kind: OutcomeKind
    reason: Reason | None = None
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Start an attempt.

    Args:
        attempt_id: Names it in every later event and effect; never used twice.
        request_id: For which request.
        stage: What to run: the whole request, its prefill, or its decode.
        replica_id: Where; the host may not choose otherwise while the replica exists.
        kv_from: For a decode, the finished prefill attempt whose blocks it pulls.
    """

    attempt_id: str
    request_id: str
    stage: Role
    replica_id: str
    kv_from: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop an attempt; its terminal event is still owed. Never takes effect during a KV transfer."""

    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """This attempt's tokens are the answer: it was the first of its stage to give one."""

    request_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send ``TimerFired(token)`` at ``at_s``."""

    token: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Forget a timer. One that has fired already may still arrive; the dispatcher ignores it."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """Tell the client how its request ended. Sent exactly once for each request."""

    request_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A decision worth keeping: metrics, traces and the event log take it from here."""

    decision: Placement


Effect = Send | Cancel | Commit | SetTimer | CancelTimer | Respond | Record

"""What policies answer, and the closed list of reasons for which a request can end early."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a request was refused or failed.

    Closed on purpose: the value is the error code over HTTP, the metric label and the log field, verbatim.
    """

    ADMISSION_REJECTED = "admission_rejected"
    QUEUE_FULL = "queue_full"
    QUOTA_EXCEEDED = "quota_exceeded"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    SHED = "shed"
    NO_REPLICA_AVAILABLE = "no_replica_available"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    REPLICA_LOST = "replica_lost"
    KV_TRANSFER_FAILED = "kv_transfer_failed"
    ENGINE_ERROR = "engine_error"
    INVALID_REQUEST = "invalid_request"
    CLIENT_GONE = "client_gone"


LOAD_REASONS = frozenset(
    {
        Reason.ADMISSION_REJECTED,
        Reason.QUEUE_FULL,
        Reason.QUOTA_EXCEEDED,
        Reason.DEADLINE_UNREACHABLE,
        Reason.SHED,
    }
)
"""Of refusals that nothing is wrong with but the load: thousands a second under attack, and counted, not logged."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Let the request in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Refuse the request before any work was spent on it.

    Args:
        reason: Which limit it met.
        retry_after_s: When the client may try again, seconds from now.
    """

    reason: Reason
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: the request keeps its place at the head of its line until a request has ended somewhere."""


ADMIT = Admit()
WAIT = Wait()

AdmissionDecision = Admit | Reject
StartDecision = Admit | Wait | Reject


@dataclass(frozen=True, slots=True)
class Keep:
    """Serve the request."""


SheddingDecision = Keep | Reject

"""What policies answer, and the closed lists of reasons: why a request ends early, why a replica is ejected."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why a request was refused or failed.

    Closed on purpose: the value is the error code over HTTP, the metric label and the log field, verbatim.
    """

    ADMISSION_REJECTED = "admission_rejected"
    QUEUE_FULL = "queue_full"
    KV_FULL = "kv_full"
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
        Reason.KV_FULL,
        Reason.QUOTA_EXCEEDED,
        Reason.DEADLINE_UNREACHABLE,
        Reason.SHED,
    }
)
"""Of refusals that nothing is wrong with but the load: thousands a second under attack, and counted, not logged."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Let the request in.

    Args:
        permit: What the policy wants to find again: it comes back to this policy, and to no other, with every later
            signal of the request and with ``start``. ``None``: nothing.
    """

    permit: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Refuse the request before any work was spent on it.

    Args:
        reason: Which limit it met.
        retry_after_s: When the client may try again, seconds from now.
        may_retry: Whether a retry has a chance by then; without one, whoever asks again is given the same answer.
    """

    reason: Reason
    retry_after_s: float
    may_retry: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: the request keeps its place at the head of its queue until a request has ended somewhere."""


ADMIT = Admit()
WAIT = Wait()

AdmissionDecision = Admit | Reject
StartDecision = Admit | Wait | Reject


@dataclass(frozen=True, slots=True)
class Keep:
    """Serve the request.

    Args:
        permit: As that of :class:`Admit`.
    """

    permit: Any = field(default=None, compare=False)


KEEP = Keep()

SheddingDecision = Keep | Reject


UNLIMITED_TOKENS = 2**31 - 1
"""More than any answer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """How a request is answered more cheaply than it asks for; what is left out is as it asks.

    Args:
        max_output_tokens: Longest answer, at least 1; what the request itself asks for where that is less.
        output_time_limit_s: How long after its first token the answer ends with what there is of it, above 0.
        may_use_cache: Whether the answer that an equal request was given will do, where the host has one.
        lane: The lane that it is served in, a fallback; empty: the one that it was put in.
    """

    max_output_tokens: int = UNLIMITED_TOKENS
    output_time_limit_s: float = math.inf
    may_use_cache: bool = False
    lane: str = ""


AS_ASKED = Degradation()


class EjectionReason(StrEnum):
    """What gave a replica away; closed, because the value is a metric label."""

    FAILURES = "failures"
    FIRST_TOKENS = "first_tokens"
    TOKENS = "tokens"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Try the request once more.

    Args:
        after_s: How long to wait before it is enqueued for a replica again; 0: not at all.
    """

    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Refuse the request: its attempt was the last one.

    Args:
        may_retry: Whether a retry of its client's has a chance.
    """

    may_retry: bool


AGAIN_AT_ONCE = Again(after_s=0.0)

RetryDecision = Again | GiveUp


UNLIMITED_ATTEMPTS = 2**31 - 1
"""More than any replica takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eject:
    """Send nothing to a replica for a while; what it has goes on.

    Args:
        replica_id: Which.
        reason: What gave it away.
        for_s: How long, above 0.
        attempts_then: How many attempts it takes at a time when it is back, until an ``Allow`` says otherwise; 1 or
            more.
    """

    replica_id: str
    reason: EjectionReason
    for_s: float
    attempts_then: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """A replica that is back takes so many attempts at a time, as far as it has slots.

    Args:
        replica_id: Which.
        max_attempts: How many, 1 or more; ``UNLIMITED_ATTEMPTS``: it is as good as any other.
    """

    replica_id: str
    max_attempts: int = UNLIMITED_ATTEMPTS


EjectionDecision = Eject | Allow

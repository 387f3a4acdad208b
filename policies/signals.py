"""What happened, told through ``observe`` to every policy whose ``consumes`` has the signal's type.

Each attempt gives ``Dispatched``, then perhaps ``FirstToken``, then exactly one of ``Completed``, ``Failed``,
``Cancelled`` and ``Superseded``. A failure never looks like a fast success: it has its own type.

Each request gives ``Offered``. Each that is let in gives ``Admitted``, then perhaps ``Started`` and ``Answering``, then
exactly one ``Ended``; these have the ``permit`` that the policy which is told has given to the request; ``None``
without one.
"""

from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import msgspec

from policies.decisions import Reason
from policies.views import RequestView, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """An attempt was sent.

    Args:
        request_id: The request.
        attempt_id: The attempt.
        replica_id: Where it went.
        work_tokens: What it adds to the replica's work.
        at_s: When.
        expected_s: Seconds until its first token, by what the replica has before it now, its own prompt included. 0 for
            a decode, and without an engine profile: a policy that goes by it names ``Need.SERVICE_RATES``.
    """

    request_id: str
    attempt_id: str
    replica_id: str
    work_tokens: int
    at_s: float
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """An attempt gave its first token ``latency_s`` after it was sent."""

    request_id: str
    attempt_id: str
    replica_id: str
    latency_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An attempt did all it was sent for, ``latency_s`` after it was sent."""

    request_id: str
    attempt_id: str
    replica_id: str
    latency_s: float
    output_tokens: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An attempt ended in an error."""

    request_id: str
    attempt_id: str
    replica_id: str
    reason: Reason
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """An attempt was stopped: nobody waits for the request any more, or it was preempted by another."""

    request_id: str
    attempt_id: str
    replica_id: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """An attempt ended because another attempt of the same stage won."""

    request_id: str
    attempt_id: str
    replica_id: str
    at_s: float


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """A request has come in, whatever becomes of it: its estimate, and the stages that it is planned to go through.

    Args:
        request: The request.
        stages: What it would go through, or will.
        refused_for: Why it was refused at once; ``None``: it was let in.
        at_s: When.
    """

    request: RequestView
    stages: tuple[Role, ...]
    refused_for: Reason | None = None
    at_s: float


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request was let in."""

    request: RequestView
    at_s: float
    permit: Any = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A request's first attempt was sent: from here on work is spent on it."""

    request: RequestView
    at_s: float
    permit: Any = None


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """A request's first token is on its way to the client."""

    request: RequestView
    at_s: float
    permit: Any = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was let in has its verdict.

    Args:
        request: The request.
        is_completed: Whether it was answered in full.
        output_tokens: Length of the answer if it was; else 0.
        at_s: When.
        permit: What the policy gave to the request.
    """

    request: RequestView
    is_completed: bool
    output_tokens: int
    at_s: float
    permit: Any = None


AttemptSignal = Dispatched | FirstToken | Completed | Failed | Cancelled | Superseded
RequestSignal = Admitted | Started | Answering | Ended
Signal = AttemptSignal | RequestSignal | Offered

ATTEMPT_ENDS: frozenset[type[AttemptSignal]] = frozenset({Completed, Failed, Cancelled, Superseded})
"""Exactly one of them for every attempt."""
SIGNAL_TYPES: frozenset[type[Signal]] = frozenset(get_args(Signal))
"""All of them: what a policy can name in ``consumes``."""

Permits = tuple[tuple[object, Any], ...]
"""Who gave a permit, and the permit; a policy that takes another one's place gets nothing that is not its own."""
NO_PERMITS: Permits = ()

S = TypeVar("S", bound=RequestSignal)


def permit_of(policy: object, permits: Permits) -> Any:
    """What the policy gave; ``None`` where it gave nothing, or was not there yet."""
    for issuer, permit in permits:
        if issuer is policy:
            return permit
    return None


def with_permit(signal: S, permit: Any) -> S:
    """The signal as it is told to the one who gave the permit."""
    return signal if signal.permit is permit else msgspec.structs.replace(signal, permit=permit)

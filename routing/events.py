"""What a host tells the dispatcher. One event, one call of ``Dispatcher.handle``.

For every :class:`routing.effects.Send` the host owes exactly one ``AttemptFinished`` or ``AttemptFailed``, whatever
happened in between, cancellation included: that event gives the replica's slot back.
"""

from dataclasses import dataclass

from policies.decisions import Reason
from policies.views import RequestView, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A request came in, parsed and tokenized."""

    request: RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A replica took the attempt; it is another one than the dispatcher picked when the pick had just vanished."""

    attempt_id: str
    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The attempt's first token reached the gateway."""

    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinished:
    """The attempt did all it was sent for. A finished prefill means: its KV blocks are held for the handoff."""

    attempt_id: str
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """The attempt ended without finishing; ``reason`` is ``CLIENT_GONE`` when the dispatcher had cancelled it."""

    attempt_id: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGone:
    """The client closed the connection."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer that an earlier ``SetTimer`` asked for."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """What does not change in a replica's life.

    Args:
        replica_id: Unique among all replicas that ever were.
        role: Which stage it serves.
        max_ongoing_requests: Attempts it takes at a time, from all gateways.
        kv_capacity_tokens: KV tokens its engine can hold, as the engine says.
    """

    replica_id: str
    role: Role
    max_ongoing_requests: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChanged:
    """The replicas of one role that are up now, all of them."""

    role: Role
    replicas: tuple[ReplicaInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    """A replica's own account of its load, as old as the host's reporting period.

    Args:
        replica_id: Who reports.
        work_tokens: Work of all attempts it has open, in the same unit as ``ReplicaView.work_tokens``.
        kv_cache_usage: Fraction of KV blocks in use, 0 to 1.
    """

    replica_id: str
    work_tokens: int
    kv_cache_usage: float


Event = (
    Arrived
    | Accepted
    | FirstToken
    | AttemptFinished
    | AttemptFailed
    | ClientGone
    | TimerFired
    | FleetChanged
    | ReplicaReported
)

"""What a host tells the dispatcher. One event, one call of ``Dispatcher.handle``.

For every :class:`routing.request.effects.Send` the host owes exactly one ``AttemptFinished``, ``AttemptFailed`` or
``AttemptWithdrawn``, whatever happened in between, cancellation included: that event gives the replica's slot back.

Events are encoded under their names, so ``msgspec`` decodes an ``Event`` to what it was. They refer to nothing that
could refer back to them, which is why the garbage collector may leave them alone.
"""

import msgspec

from policies.decisions import Reason
from policies.load_reports import AdmissionThresholds
from policies.views import RequestView, Role
from routing.request.news import CacheChange, GatewayNews


class Arrived(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request came in, parsed and tokenized."""

    request: RequestView


class Accepted(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A replica took the attempt; it is another one than the dispatcher picked when the pick had just vanished."""

    attempt_id: str
    replica_id: str


class AnswerBegun(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The answer's first token is here, drawn with its prompt: the decode has passed it on, and still pulls the KV."""

    attempt_id: str


class FirstTokenReceived(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The attempt's first token reached the gateway."""

    attempt_id: str


class LaneLengthExceeded(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The attempt's tokens have reached one of its ``Send.lane_limits_tokens``, perhaps a while ago."""

    attempt_id: str
    output_tokens: int


class AttemptFinished(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The attempt did all it was sent for. A finished prefill means: its KV blocks are held for the handoff.

    Args:
        attempt_id: The attempt.
        output_tokens: How many tokens it gave; an answer that was interrupted has had more before.
    """

    attempt_id: str
    output_tokens: int


class AttemptFailed(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The attempt ended without finishing.

    Args:
        attempt_id: The attempt.
        reason: Why; ``CLIENT_GONE`` when the dispatcher had cancelled it.
        output_tokens: Tokens of it that were emitted.
        was_taken: Whether its replica had it. One that was lost before, or takes nothing, was not lost of it.
    """

    attempt_id: str
    reason: Reason
    output_tokens: int = 0
    was_taken: bool = True


class AttemptWithdrawn(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The attempt ended before anything was computed for it: the other one of two tied attempts has the execution
    claim.
    """

    attempt_id: str


class ClientGone(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The client closed the connection."""

    request_id: str


class TimerFired(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A timer that an earlier ``SetTimer`` asked for."""

    token: str


class ReplicaInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What does not change in a replica's life.

    Args:
        replica_id: Unique among all replicas that ever were.
        role: Which stage it serves.
        pool: The pool that it belongs to.
        max_ongoing_requests: Attempts it takes at a time, from all gateways.
        kv_capacity_tokens: KV tokens its engine can hold, as the engine says.
        failure_domain: What it shares its troubles with, such as its node; empty when the host does not say.
        place: Where it is, by level, an element for each of ``ServiceRates.links``; empty where it does not matter.
        max_adapters: LoRA adapters that its engine keeps loaded.
    """

    replica_id: str
    role: Role
    pool: str
    max_ongoing_requests: int
    kv_capacity_tokens: int
    failure_domain: str = ""
    place: tuple[str, ...] = ()
    max_adapters: int = 0


class FleetChanged(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The replicas of one pool that are up now, all of them."""

    pool: str
    role: Role
    replicas: tuple[ReplicaInfo, ...]


class ReplicaReported(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A replica's own account of its load, as old as the host's reporting period.

    Args:
        replica_id: Who reports.
        prefill_tokens: Of all attempts that it has open and that have no first token yet, as their gateways said.
        kv_tokens: Of all attempts that it has open, likewise.
        kv_cache_usage: Fraction of KV blocks in use, 0 to 1.
        adapters: Names of those that are loaded, the last one used first.
        adapters_in_use: Names of those that requests which it has are computed with.
    """

    replica_id: str
    prefill_tokens: int
    kv_tokens: int
    kv_cache_usage: float
    adapters: tuple[str, ...] = ()
    adapters_in_use: tuple[str, ...] = ()


class ReplicaStalled(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A replica stands still: it says nothing, or its engine has requests and makes no step. Told again and again while
    that lasts.
    """

    replica_id: str


class ReplicaUnstalled(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A replica that stood still does so no longer."""

    replica_id: str


class ProbeEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """What has come of a :class:`routing.request.effects.Probe`.

    Args:
        probe_id: Which.
        is_well: Whether the engine has answered.
    """

    probe_id: str
    is_well: bool


class CacheChanged(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A replica's engine has told what has come into its prefix cache and gone from it, to this gateway alone."""

    change: CacheChange


class LoadDue(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """It is time to tell the load coordinator of this gateway's load; comes every ``Dispatcher.report_period_s``."""


class ThresholdsReceived(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The load coordinator has answered."""

    thresholds: AdmissionThresholds


class NewsReceived(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """What is new with the other gateways: their work a moment ago, and logical requests that they have not answered:
    retries of them may come here. Times are on this gateway's clock.
    """

    news: GatewayNews


class Reconfigured(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The configuration is another one from now on: ``spec`` is what :func:`routing.config.spec.to_json` wrote."""

    spec: str


Event = (
    Arrived
    | Accepted
    | AnswerBegun
    | FirstTokenReceived
    | LaneLengthExceeded
    | AttemptFinished
    | AttemptFailed
    | AttemptWithdrawn
    | ClientGone
    | TimerFired
    | FleetChanged
    | ReplicaReported
    | ReplicaStalled
    | ReplicaUnstalled
    | ProbeEnded
    | CacheChanged
    | LoadDue
    | ThresholdsReceived
    | NewsReceived
    | Reconfigured
)

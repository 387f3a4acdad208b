"""What the dispatcher asks of a host. Hosts carry effects out in order and decide nothing.

Effects are encoded under their names, as events are (:mod:`routing.request.events`).
"""

from enum import StrEnum

import msgspec

from policies.decisions import EjectionReason, Reason
from policies.load_reports import LoadReport
from policies.views import Priority, Role
from routing.request.news import CacheChange, FirstArrival, SentPrompt
from routing.request.stages import Plan


class OutcomeKind(StrEnum):
    """How a request ended. Every request ends in exactly one of these."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The verdict on a request.

    Args:
        kind: ``REFUSED`` means before the first token, with nothing of the answer sent; ``FAILED`` after it.
        reason: Why, unless it completed.
        retry_after_s: For a refusal, when to try again, seconds from now.
        may_retry: Whether a retry has a chance by then.
    """

    kind: OutcomeKind
    reason: Reason | None = None
    retry_after_s: float = 0.0
    may_retry: bool = True


class Classification(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Which lane a request was put in; recorded where there is more than one.

    Args:
        request_id: The request.
        lane: The lane's name.
        uncached_tokens: What of its prompt is expected to be computed.
        output_tokens: How long its answer is expected to be.
    """

    request_id: str
    lane: str
    uncached_tokens: int
    output_tokens: int


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Which replica an attempt went to, for the record of decisions.

    Args:
        request_id: The request.
        attempt_id: The dispatch it led to.
        replica_id: The replica that was picked.
        num_candidates: How many replicas could have been picked.
        is_hedge: Whether another attempt of the same stage was already under way.
        adapter: What the request is computed with; empty: none.
        has_adapter: Whether the replica was taken to have that loaded.
    """

    request_id: str
    attempt_id: str
    replica_id: str
    num_candidates: int
    is_hedge: bool
    adapter: str = ""
    has_adapter: bool = True


class Race(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request had several attempts at a stage, and one of them is the one that counts.

    It gave the first token, and the others are stopped; or they were tied, and it has the execution claim.

    Args:
        request_id: The request.
        attempt_id: The winner.
        is_hedge: Whether that was the second one to be sent.
        superseded_tokens: Prompt tokens that the others had to compute: what was done twice, at the most. Tied ones
            compute nothing.
    """

    request_id: str
    attempt_id: str
    is_hedge: bool
    superseded_tokens: int


class Demotion(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request whose answer has exceeded its lane's length; it goes on where it is and counts as one of another lane.

    Args:
        request_id: The request.
        attempt_id: The attempt that gives the answer.
        from_lane: The lane that it was in.
        to_lane: The lane that it is in now; the same one when no other takes answers of that length.
        output_tokens: How long the answer is already.
    """

    request_id: str
    attempt_id: str
    from_lane: str
    to_lane: str
    output_tokens: int


class Preemption(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """An attempt was preempted by a request that matters more; its own request waits to be resumed.

    Args:
        request_id: The request.
        attempt_id: The attempt that was stopped.
        output_tokens: Tokens of it that have been emitted; they are kept.
    """

    request_id: str
    attempt_id: str
    output_tokens: int


class Resumption(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """An answer whose replica was lost is resumed elsewhere, from its prompt and what has been emitted.

    Args:
        request_id: The request.
        attempt_id: The attempt that was lost.
        output_tokens: Tokens of it that have been emitted; they are kept.
    """

    request_id: str
    attempt_id: str
    output_tokens: int


class Replan(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request goes by another plan than was chosen for it, because a stage of that has no replica.

    Args:
        request_id: The request.
        plan: Its stages from here on.
        instead_of: Those that it had before it.
    """

    request_id: str
    plan: Plan
    instead_of: Plan


class Retry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request whose attempt was lost before anything of its answer was emitted is tried again.

    Args:
        request_id: The request.
        attempt_id: The attempt that was lost.
        reason: How.
        after_s: How long it waits before it is enqueued again.
    """

    request_id: str
    attempt_id: str
    reason: Reason
    after_s: float


class ToldBy(StrEnum):
    """What gave a client's retry away; closed, because the value is a metric label."""

    HEADER = "header"
    KEY = "key"


class Link(StrEnum):
    """By what a client's retry was found to belong to its logical request; closed for the same reason."""

    KEY = "key"
    BODY = "body"
    NONE = "none"


class ClientRetry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request that its client has sent before.

    Args:
        request_id: The request.
        told_by: How that is known: by the count that its client sends, or by an idempotency key that has come before.
        link: By what its first arrival was found; ``none``: it was not, and the request is one like any other.
        first_request_id: That first arrival; empty where there is no link.
    """

    request_id: str
    told_by: ToldBy
    link: Link
    first_request_id: str = ""


class Degraded(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A request that was let in and is answered more cheaply than it asks for; comes before anything is sent for it.

    Args:
        request_id: The request.
        priority: Its class.
        max_output_tokens: Its longest answer now.
        asked_output_tokens: The longest one that it asked for.
        output_time_limit_s: How long after its first token the answer ends with what there is of it; 0: when it is
            whole.
        from_cache: Whether it is answered with what an equal request was given.
        lane: The fallback that it is served in; empty: the lane that it was put in.
    """

    request_id: str
    priority: Priority
    max_output_tokens: int
    asked_output_tokens: int
    output_time_limit_s: float = 0.0
    from_cache: bool = False
    lane: str = ""


class Ejection(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A replica gets nothing for a while, because it is sicker than its peers.

    Args:
        replica_id: The replica.
        pool: Its pool.
        reason: What gave it away.
        until_s: When the while is over.
    """

    replica_id: str
    pool: str
    reason: EjectionReason
    until_s: float


class Readmission(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """An ejected replica is back: its time is over, or nobody else of its pool is left.

    Args:
        replica_id: The replica.
        pool: Its pool.
    """

    replica_id: str
    pool: str


class Send(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Start an attempt. When part of the answer has been emitted, the prompt is the request's and that part.

    Args:
        attempt_id: Names it in every later event and effect; never used twice.
        request_id: For which request.
        stage: What to run: the whole request, its prefill, or its decode.
        replica_id: Where; the host may not choose otherwise while the replica exists.
        pool: The pool that this replica belongs to.
        prefill_tokens: Prompt tokens that it is expected to compute there; the replica counts them as its work until
            the attempt's first token.
        kv_tokens: KV tokens that it is expected to hold there at its longest; its work until the attempt's end.
        kv_from: For a decode, the finished prefill attempt whose blocks it pulls.
        lane_limits_tokens: Lengths of the answer, ascending, of which the dispatcher wants to hear by
            ``LaneLengthExceeded``.
        engine_priority: Its place among those that wait inside the engine; smaller goes first.
        tied_to: The open attempt that it is tied to: the two share an execution claim, the one whose turn comes first
            has it and computes the prompt, and the other ends by ``AttemptWithdrawn``.
    """

    attempt_id: str
    request_id: str
    stage: Role
    replica_id: str
    pool: str
    prefill_tokens: int
    kv_tokens: int
    kv_from: str | None
    lane_limits_tokens: tuple[int, ...] = ()
    engine_priority: int = 0
    tied_to: str | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Stop an attempt; its terminal event is still owed. Never takes effect during a KV transfer.

    Its request may be resumed: tokens that have been emitted by then are part of what the next ``Send`` continues.
    """

    attempt_id: str


class ReleaseKv(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Have KV freed that a prefill engine holds and nobody will pull. Who can't leaves it to its lease.

    Args:
        request_id: Whose.
        kv_from: The finished prefill attempt.
        replica_id: A decode replica, whose engine tells the one that holds it.
    """

    request_id: str
    kv_from: str
    replica_id: str


class Probe(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Have a replica answer a request that no client has sent; ``ProbeEnded`` is owed, unless it is cancelled.

    Args:
        probe_id: Names it, as an attempt's id does; never used twice.
        replica_id: Whose engine is tried.
        pool: The pool that this replica belongs to.
        prompt_tokens: Of its prompt, of which nothing is cached.
        output_tokens: Of its answer.
    """

    probe_id: str
    replica_id: str
    pool: str
    prompt_tokens: int
    output_tokens: int


class CancelProbe(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Its time is over, and nobody waits for what comes of it any more."""

    probe_id: str


class Truncate(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """End the answer where it is, as if it had reached its length.

    ``AttemptFinished`` is owed, with the tokens that the client was given.
    """

    attempt_id: str


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """This attempt's tokens are the answer, or resume it: it was the first of its stage to give one."""

    request_id: str
    attempt_id: str


EARLY_S = 0.01
"""So much sooner a timer may fire: those of some event loops are a bit early."""


class SetTimer(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Send ``TimerFired(token)`` at ``at_s``, or up to ``EARLY_S`` sooner."""

    token: str
    at_s: float


class CancelTimer(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Forget a timer. One that has fired already may still arrive; the dispatcher ignores it."""

    token: str


class Respond(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Tell the client how its request ended. Sent exactly once for each request."""

    request_id: str
    outcome: Outcome


class PushLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Tell the load coordinator; its answer comes back as ``ThresholdsReceived``, or does not come."""

    report: LoadReport


class ShareFirstArrival(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Tell the other gateways, within a tenth of a second: a retry of this logical request may go to any of them."""

    arrival: FirstArrival


class SharePrompt(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Tell the other gateways, within a tenth of a second: what the prompt begins with is in that replica's cache."""

    prompt: SentPrompt


class ShareCacheChange(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Tell the other gateways likewise: a replica has told this one what has come into its prefix cache and gone."""

    change: CacheChange


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A decision worth keeping: metrics, traces and the event log take it from here."""

    decision: (
        Classification
        | ClientRetry
        | Degraded
        | Placement
        | Demotion
        | Preemption
        | Race
        | Replan
        | Resumption
        | Retry
        | Ejection
        | Readmission
    )


Effect = (
    Send
    | Cancel
    | ReleaseKv
    | Probe
    | CancelProbe
    | Truncate
    | Commit
    | SetTimer
    | CancelTimer
    | Respond
    | PushLoad
    | ShareFirstArrival
    | SharePrompt
    | ShareCacheChange
    | Record
)

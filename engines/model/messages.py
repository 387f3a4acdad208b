"""What an engine is told, what it tells, and what two engines say to each other about one request.

A message names a request by the id that it has where the message goes to. Two engines have two ids for it, one of each
attempt, and the host that carries a message from one engine to the other changes the id on the way.
"""

from enum import StrEnum

import msgspec

from engines.faults import FaultKind
from engines.model.sequences import Sequence
from policies.decisions import Reason

# -- what steps tell the rest of an engine ----------------------------------------------------------------------------


class Happening(StrEnum):
    """What an engine tells about a sequence. ``TURN``: of one that shares an execution claim, and begins now if it
    may.
    """

    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    KV_PULLED = "kv_pulled"
    TURN = "turn"


class StepOutput(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to a sequence.

    Args:
        at_s: When it leaves the engine.
        happening: What.
        sequence: To whom. A finished prefill still holds its KV until ``release_held``.
    """

    at_s: float
    happening: Happening
    sequence: Sequence


# -- what a host tells an engine --------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, gc=False):
    """A request comes in. The answer is :class:`Failed` or :class:`Withdrawn` where the engine does not take it.

    Args:
        sequence: The request. With ``claim`` ``WANTED`` it is tied to one that another engine has.
    """

    sequence: Sequence


class Abort(msgspec.Struct, frozen=True, gc=False):
    """A request is not needed any more, nor is KV that is held of it and that no engine has claimed."""

    request_id: str


class BeginFault(msgspec.Struct, frozen=True, gc=False):
    """Something goes wrong. After ``CRASH`` the engine says nothing more: its peers notice that by themselves.

    Args:
        kind: What.
        factor: For ``SLOW``: how many times as long a step takes.
    """

    kind: FaultKind
    factor: float = 1.0


class EndFault(msgspec.Struct, frozen=True, gc=False):
    """It goes right again; an engine that crashed stays dead."""

    kind: FaultKind


# -- what an engine tells its host ------------------------------------------------------------------------------------


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    """A request's first token is there, and leaves the engine at ``at_s``."""

    request_id: str
    at_s: float


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A request's last token is there, and leaves the engine at ``at_s``; the KV of a prefill is held from now on."""

    request_id: str
    at_s: float


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A request was not taken in, or has come to a bad end.

    Args:
        request_id: Which.
        reason: ``REPLICA_LOST``: the engine takes none. ``ENGINE_ERROR``, ``INVALID_REQUEST``, ``KV_TRANSFER_FAILED``.
        why: The same in words.
    """

    request_id: str
    reason: Reason
    why: str


class Withdrawn(msgspec.Struct, frozen=True, gc=False):
    """A tied request has left its queue, or has not entered it: the other engine computes its prompt."""

    request_id: str


# -- KV handoff, from the decode's engine to the prefill's ------------------------------------------------------------


class ClaimKv(msgspec.Struct, frozen=True, gc=False):
    """A decode is about to pull the KV of a finished prefill. The answer is :class:`KvClaimed` or :class:`KvGone`."""

    request_id: str


class KvPulled(msgspec.Struct, frozen=True, gc=False):
    """A claim is over: the KV is there since ``at_s``, or is not needed."""

    request_id: str
    at_s: float = 0.0


class KvClaimEnded(msgspec.Struct, frozen=True, gc=False):
    """A claim is over without a pull: the engine that had it has died, or can't use it."""

    request_id: str


# -- and back ---------------------------------------------------------------------------------------------------------


class KvClaimed(msgspec.Struct, frozen=True, gc=False):
    """The KV is held until the claim is over."""

    request_id: str


class KvGone(msgspec.Struct, frozen=True, gc=False):
    """The KV is not held any more, or can't be pulled."""

    request_id: str
    why: str = ""


class KvHolderLost(msgspec.Struct, frozen=True, gc=False):
    """The engine that held the KV has died before it was pulled."""

    request_id: str


# -- tied requests, from the second attempt's engine to the first one's -----------------------------------------------


class Meet(msgspec.Struct, frozen=True, gc=False):
    """Another engine has a request's prompt, too. The answer is :class:`Begun`, now or when the request begins."""

    request_id: str


class AskClaim(msgspec.Struct, frozen=True, gc=False):
    """It is the second one's turn. The answer is :class:`Begun`, or :class:`GrantClaim` and the first one withdraws."""

    request_id: str


# -- and back ---------------------------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt is computed, or was; the one that is tied to it is withdrawn."""

    request_id: str


class GrantClaim(msgspec.Struct, frozen=True, gc=False):
    """A tied request may begin."""

    request_id: str


Message = (
    Submit
    | Abort
    | BeginFault
    | EndFault
    | FirstToken
    | Finished
    | Failed
    | Withdrawn
    | ClaimKv
    | KvPulled
    | KvClaimEnded
    | KvClaimed
    | KvGone
    | KvHolderLost
    | Meet
    | AskClaim
    | Begun
    | GrantClaim
)

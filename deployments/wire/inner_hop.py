"""What travels between a gateway and a replica: bytes that msgspec makes and reads in microseconds.

A stream's items are chunks; its last item is a chunk with a finish reason, a :class:`Failure` or :class:`Withdrawn`;
a prefill's only one is the handle of its KV, or one of those two. Failures travel as values, so that every one arrives
with its reason whatever the transport does to exceptions.
"""

import msgspec

from engines.contract import Chunk, EngineRequest, KvHandle
from policies.decisions import Reason
from policies.errors import EngineDied, EngineUnavailable, KvTransferFailed, PromptWithdrawn, RequestInvalid


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """How an attempt failed on the replica.

    Args:
        reason: From the closed list.
        message: One sentence.
        param: The request field at fault, for an invalid request.
        was_taken: Whether the engine had it, and may have been lost of it.
    """

    reason: Reason
    message: str
    param: str | None = None
    was_taken: bool = True


class Withdrawn(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Nothing was done: the attempt that this one is tied to has the claim."""


class WithCacheChange(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What an attempt gave, and on its way what has happened in its replica's prefix cache since this was last told.

    Args:
        item: What it gave.
        stored: Blocks of prompts that have come into the cache, as gateways number them.
        dropped: Those that have gone from it.
    """

    item: Chunk | KvHandle
    stored: tuple[int, ...]
    dropped: tuple[int, ...]


Item = Chunk | KvHandle | Failure | Withdrawn | WithCacheChange


def is_last(item: Item) -> bool:
    """Whether an attempt has nothing more to give."""
    if isinstance(item, WithCacheChange):
        item = item.item
    return not isinstance(item, Chunk) or item.finish_reason is not None


ENCODER = msgspec.msgpack.Encoder()
encode = ENCODER.encode
decode_request = msgspec.msgpack.Decoder(EngineRequest).decode
decode_item = msgspec.msgpack.Decoder(Item).decode
decode_handle = msgspec.msgpack.Decoder(KvHandle).decode


def failure_of(error: Exception) -> Failure | Withdrawn:
    """What an engine's exception amounts to."""
    match error:
        case PromptWithdrawn():
            return Withdrawn()
        case RequestInvalid():
            return Failure(Reason.INVALID_REQUEST, error.message, error.param)
        case KvTransferFailed():
            return Failure(Reason.KV_TRANSFER_FAILED, str(error))
        case EngineUnavailable():
            return Failure(Reason.REPLICA_LOST, str(error), was_taken=isinstance(error, EngineDied))
        case _:
            return Failure(Reason.ENGINE_ERROR, f"{type(error).__name__}: {error}")

"""What gateways and replicas say to each other over a connection.

A frame's body is a list of messages, all that one side had to say in one turn of its event loop. So an engine's step is
one frame, however many streams it has tokens for. Streams are numbered by the gateway; a number is used once in the
life of a connection.
"""

from collections.abc import Sequence

import msgspec

from deployments.data_plane.frames import FrameError, frame
from deployments.data_plane.kept_answers import KeptAnswer
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Item


class Open(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A gateway begins a stream: an attempt.

    Args:
        stream: Its number.
        order: What is to be done.
        window_items: Items that the replica may give before it is granted more.
    """

    stream: int
    order: AttemptOrder
    window_items: int


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A gateway has consumed items of a stream: the replica may give as many more."""

    stream: int
    items: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A gateway wants nothing more of a stream, which ends without another word from either side."""

    stream: int


class Recall(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A gateway goes on with an answer that another one has begun: what is there of it? Who still runs it stops.

    Args:
        number: Of the question, once in the life of a connection.
        name: What the answer is kept as.
    """

    number: int
    name: str


class Release(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A gateway gives KV up that a prefill engine holds: the replica's engine tells that one.

    Args:
        handle: Where it is held, encoded.
    """

    handle: bytes


class Given(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A replica's next item of a stream; its last one ends it."""

    stream: int
    item: Item


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A replica lives. Twice a second, whatever else it has to say.

    Args:
        is_stalled: Whether its engine has requests and makes no step.
    """

    is_stalled: bool


class Recalled(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A replica's reply to :class:`Recall`; ``None``: it has nothing of that answer."""

    number: int
    answer: KeptAnswer | None


FromGateway = Open | Grant | Cancel | Recall | Release
FromReplica = Given | Beat | Recalled
_encode = msgspec.msgpack.Encoder().encode
_from_gateway = msgspec.msgpack.Decoder(list[FromGateway]).decode
_from_replica = msgspec.msgpack.Decoder(list[FromReplica]).decode


def frame_of(messages: Sequence[FromGateway | FromReplica]) -> bytes:
    """One frame with all that one side has to say.

    Raises:
        FrameError: It would be too long.
    """
    return frame(_encode(messages))


def read_gateway(body: bytes) -> list[FromGateway]:
    """What a gateway says.

    Raises:
        FrameError: It says nothing that makes sense.
    """
    try:
        return _from_gateway(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not what a gateway says: {error}") from error


def read_replica(body: bytes) -> list[FromReplica]:
    """What a replica says.

    Raises:
        FrameError: It says nothing that makes sense.
    """
    try:
        return _from_replica(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not what a replica says: {error}") from error

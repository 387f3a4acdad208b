"""The event log: all that one dispatcher was told and what it answered, as bytes.

A log is ``MAGIC`` and then frames. A frame is a head (length and checksum of the payload, and a checksum of these two)
and a payload. The first payload is the header, in JSON: what the same dispatcher can be built from again. Each other
one is a record, in msgpack, which is cheap and keeps every float as it was: ``[now_s, event, answer]``. The answer is
the list of effects or, where the dispatcher raised, the exception's name. The last one is an ``End``, unless the
process was killed; then the log is whole up to the last whole frame.

The checksum of the head tells a log that was cut off, which is what killing does, from one that was damaged.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol
from zlib import crc32

import msgspec

from cluster.seeds import GatewayStreams
from policies.errors import ServingError
from routing.config.spec import DispatcherSpec
from routing.request.effects import Effect
from routing.request.events import Event

MAGIC = b"spillway event log\n"
VERSION = 6
CLOSED = "closed"
"""The reason of an end that nothing had gone wrong before."""

_SIZES = struct.Struct(">II")
_HEAD = struct.Struct(">III")
_encode = msgspec.msgpack.Encoder().encode


class EventLogUnreadable(ServingError):
    """Not an event log, one of another version, or one that was damaged; the message says where."""


class DispatcherListener(Protocol):
    """Hears all that a dispatcher is told and answers. Called on the hot path, so it neither waits nor raises."""

    def on_event(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """The dispatcher was told of an event and answered with these effects."""
        ...

    def on_error(self, now_s: float, event: Event, error: Exception) -> None:
        """The dispatcher was told of an event and raised."""
        ...


class NoEventLog:
    """Hears everything and keeps nothing."""

    def on_event(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None: ...

    def on_error(self, now_s: float, event: Event, error: Exception) -> None: ...

    def close(self) -> None:
        """There is nothing to end."""


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the dispatcher was made from, and whose it was.

    Args:
        version: Of the format.
        gateway: The gateway, for people.
        streams: Its random streams.
        dispatcher: Its policies, planner and limits.
        has_breakers: Whether policies of somebody's own were behind breakers.
    """

    version: int = VERSION
    gateway: str
    streams: GatewayStreams
    dispatcher: DispatcherSpec
    has_breakers: bool = False


class LogRecord(NamedTuple):
    """One call of the dispatcher.

    Args:
        now_s: The time that it was given.
        event: What it was told.
        answer: What it answered, as :func:`encode_answer` encodes it.
    """

    now_s: float
    event: Event
    answer: msgspec.Raw


class End(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a log.

    Args:
        reason: ``CLOSED``, or why nothing follows although the dispatcher went on.
    """

    reason: str


def encode_header(header: LogHeader) -> bytes:
    """How a log begins.

    JSON as Python writes it keeps what msgpack would not: seeds of any size, and the order of a policy's parameters.

    Raises:
        TypeError: A policy's parameters are not such as YAML could give.
    """
    return MAGIC + frame(json.dumps(header_document(header)).encode())


def header_document(header: LogHeader) -> dict[str, Any]:
    """The header as plain values, the same for equal headers."""
    document: dict[str, Any] = msgspec.to_builtins(header)
    return document


def encode_record(now_s: float, event: Event, answer: Sequence[Effect] | str) -> bytes:
    """One record's payload; :func:`frame` is still to come, and need not be on the hot path.

    Raises:
        Exception: Whatever a value that can't be encoded raises; policies can put such values into effects.
    """
    return _encode((now_s, event, answer))


def encode_answer(answer: Sequence[Effect] | str) -> bytes:
    """The effects, or the name of the exception that came in their place, as a record has them."""
    return _encode(answer)


def encode_end(reason: str) -> bytes:
    """The last frame of a log."""
    return frame(_encode(End(reason=reason)))


def frame(payload: bytes) -> bytes:
    """A payload behind its head."""
    sizes = _SIZES.pack(len(payload), crc32(payload))
    return sizes + crc32(sizes).to_bytes(4, "big") + payload


class LogReader:
    """Reads a log from its beginning, record by record, in constant memory.

    Args:
        file: At the log's first byte.

    Raises:
        EventLogUnreadable: There is no whole header, or not one of this version.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = msgspec.msgpack.Decoder(LogRecord | End)
        self._answers = msgspec.msgpack.Decoder(list[Effect] | str)
        self.num_records = 0
        self.end_reason: str | None = None
        """Once all is read: why the log ends, or ``None`` where the process was killed."""
        self.cut_off_bytes = 0
        """Once all is read: how much there is of a last frame that is not whole."""
        self.header = self._read_header()

    def __iter__(self) -> Iterator[LogRecord]:
        """All whole records.

        Raises:
            EventLogUnreadable: A record is damaged, or something follows the end.
        """
        while (payload := self._read_frame()) is not None:
            if self.end_reason is not None:
                raise self._unreadable("something follows the end")
            try:
                item = self._decoder.decode(payload)
            except msgspec.MsgspecError as error:
                raise self._unreadable(f"not a record ({error})") from error
            if isinstance(item, End):
                self.end_reason = item.reason
            else:
                self.num_records += 1
                yield item

    def answer(self, record: LogRecord) -> Sequence[Effect] | str:
        """What the dispatcher answered: the effects, or the name of the exception that came in their place.

        Raises:
            EventLogUnreadable: It is neither.
        """
        try:
            answer: Sequence[Effect] | str = self._answers.decode(record.answer)
        except msgspec.MsgspecError as error:
            raise self._unreadable(f"not an answer ({error})") from error
        return answer

    def _read_header(self) -> LogHeader:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise EventLogUnreadable("not an event log")
        payload = self._read_frame()
        if payload is None:
            raise EventLogUnreadable("the log ends before its header does")
        try:
            document: Any = json.loads(payload)
            if document["version"] != VERSION:
                allowed = f"{VERSION}; the release that wrote the log reads it"
                raise EventLogUnreadable(f"a log of version {document['version']}; readable: {allowed}")
            return msgspec.convert(document, LogHeader)
        except (ValueError, LookupError, TypeError) as error:  # what msgspec raises is a ValueError
            raise EventLogUnreadable(f"the log's header is none ({error})") from error

    def _read_frame(self) -> bytes | None:
        """The next payload; ``None`` when there is no whole one left."""
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            self.cut_off_bytes = len(head)
            return None
        length, checksum, checksum_of_sizes = _HEAD.unpack(head)
        if crc32(head[: _SIZES.size]) != checksum_of_sizes:
            raise self._unreadable("damaged")
        payload = self._file.read(length)
        if len(payload) < length:
            self.cut_off_bytes = len(head) + len(payload)
            return None
        if crc32(payload) != checksum:
            raise self._unreadable("damaged")
        return payload

    def _unreadable(self, what: str) -> EventLogUnreadable:
        return EventLogUnreadable(f"after record {self.num_records}: {what}")

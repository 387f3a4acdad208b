"""Event logs in memory, and the surgery that tests do on them."""

import io
from collections.abc import Sequence

from cluster import GatewayStreams, LogHeader
from cluster.event_log.frames import CLOSED, LogReader, encode_end, encode_header, encode_record, frame
from policies import PolicyChoice, Role
from routing import DispatcherSpec, Effect, Event

A_SPEC = DispatcherSpec(planner=PolicyChoice(name="always_unified"), pools={"unified": Role.UNIFIED})


def a_header(spec: DispatcherSpec = A_SPEC, seed: int = 1) -> LogHeader:
    """The header of a gateway whose streams are those of ``Seeds(seed)``."""
    return LogHeader(gateway="gw", streams=GatewayStreams(seed=seed), dispatcher=spec)


class LogInMemory:
    """A listener that keeps a log's pieces apart, so that a test can leave one out or swap one.

    Args:
        header: What the dispatcher was made from.
    """

    def __init__(self, header: LogHeader) -> None:
        self.header = header
        self.frames: list[bytes] = []
        self.events: list[Event] = []

    def on_event(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        self.events.append(event)
        self.frames.append(frame(encode_record(now_s, event, effects)))

    def on_error(self, now_s: float, event: Event, error: Exception) -> None:
        self.events.append(event)
        self.frames.append(frame(encode_record(now_s, event, type(error).__name__)))

    def whole(self, end: str | None = CLOSED) -> bytes:
        """The log as a file has it."""
        return b"".join((encode_header(self.header), *self.frames, encode_end(end) if end is not None else b""))

    def file(self) -> io.BytesIO:
        """The same to read from."""
        return io.BytesIO(self.whole())


def read_all(data: bytes) -> LogReader:
    """A reader at the end of the log."""
    reader = LogReader(io.BytesIO(data))
    for _ in reader:
        pass
    return reader

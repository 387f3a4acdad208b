"""Writes an event log to a file, off the hot path and within bounded memory.

The caller's thread encodes a record, half a microsecond or so, and puts it into line; a thread of the log's own writes
what waits there several times a second. A log can't have gaps, or nothing after one would replay. So when a record is
lost, for whatever reason, the log ends, with a last frame that says why. Serving goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO

from cluster.event_log.frames import CLOSED, LogHeader, encode_end, encode_header, encode_record, frame
from routing.request.effects import Effect
from routing.request.events import Event

FLUSH_PERIOD_S = 0.25
"""What a killed process loses at most."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""More than that waits only for a disk that hangs."""
RECORDS_PER_WRITE = 256
"""Few enough to hold the interpreter's lock for some tenths of a millisecond only; each write lets go of it."""
CLOSE_PATIENCE_S = 5.0


class EventLogFile:
    """The log of one dispatcher, in one file; an ``DispatcherListener`` for one thread.

    Args:
        file: Where to, empty, seekable and unbuffered; closed by this.
        header: What the dispatcher was made from.
        complain: Told once, from another thread, if the log ends early.
        max_waiting_bytes: Records that wait to be written may take so much memory, and no more.
    """

    def __init__(
        self,
        file: FileIO,
        header: LogHeader,
        complain: Callable[[str], None],
        *,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._file = file
        self._header = encode_header(header)
        self._complain = complain
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._taken_bytes = 0  # written by the caller's thread alone...
        self._written_bytes = 0  # ...as this is by the log's own
        self._file_bytes = 0
        self._is_over = False
        self._end_reason = CLOSED
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    # -- the caller's thread ------------------------------------------------------------------------------------------

    def on_event(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        self._take(now_s, event, effects)

    def on_error(self, now_s: float, event: Event, error: Exception) -> None:
        self._take(now_s, event, type(error).__name__)

    def close(self) -> None:
        """Writes what waits and ends the log; whatever comes later is not in it."""
        self._end(CLOSED)
        self._thread.join(CLOSE_PATIENCE_S)

    def _take(self, now_s: float, event: Event, answer: Sequence[Effect] | str) -> None:
        if self._is_over:
            return
        try:
            record = encode_record(now_s, event, answer)
        except Exception as error:  # a policy's odd value must not break the request that it was for
            self._end(f"a record could not be encoded: {error}")
            return
        self._waiting.append(record)
        self._taken_bytes += len(record)
        if self._taken_bytes - self._written_bytes > self._max_waiting_bytes:
            self._end("events came faster than they could be written")

    def _end(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._end_reason = reason
            self._wake.set()

    # -- the log's own thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write(self._header)
            while not self._wake.wait(FLUSH_PERIOD_S):
                self._write_waiting()
            self._write_waiting()
        except OSError as error:
            self._is_over = True
            self._end_reason = f"it could not be written: {error}"
            self._waiting.clear()
        self._write_end()
        with suppress(OSError):
            self._file.close()

    def _write_waiting(self) -> None:
        while self._waiting:
            records = [self._waiting.popleft() for _ in range(min(len(self._waiting), RECORDS_PER_WRITE))]
            self._write(b"".join(map(frame, records)))
            self._written_bytes += sum(map(len, records))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._file_bytes += len(data)

    def _write_end(self) -> None:
        """What a full disk took in part is given back first, which leaves room for the last frame."""
        if self._end_reason != CLOSED:
            self._complain(f"the event log {self._file.name} ends early: {self._end_reason}")
        if not self._file_bytes:
            return
        with suppress(OSError):
            self._file.truncate(self._file_bytes)
            self._file.seek(self._file_bytes)
            self._write(encode_end(self._end_reason))

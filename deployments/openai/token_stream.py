"""The pipe between the attempt that won and the response that its tokens go out through."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from deployments.wire.attempt_call import GRANT_ITEMS, WINDOW_ITEMS
from engines.contract import Chunk
from routing.request.effects import Outcome

FULL_ITEMS = WINDOW_ITEMS - GRANT_ITEMS + 1
"""With so many unread a replica may have sent all that it was granted: what is read is told it in packs."""


def _nothing() -> None:
    """Nobody waits for it."""


class AnswerSink(Protocol):
    """Takes an answer as it comes."""

    @property
    def is_paused(self) -> bool:
        """Whether it has no room for more now; who resumes it calls :meth:`TokenStream.drain`."""
        ...

    def take(self, chunk: Chunk) -> None:
        """The next chunk."""
        ...

    def finish(self, outcome: Outcome) -> None:
        """How the request ended; the last that it hears."""
        ...


class TokenStream:
    """Chunks in order, then exactly one outcome. One writer, one reader or sink, one event loop.

    A client that reads slowly leaves chunks unread; their replica is not told that they are consumed, stops sending,
    and the engine's tokens are merged into fewer, bigger chunks.

    Args:
        on_room: Is called when a chunk is read of a pipe that was full.
    """

    __slots__ = ("_chunks", "_on_room", "_reader", "_sink", "outcome")

    def __init__(self, on_room: Callable[[], None] = _nothing) -> None:
        self._chunks: deque[tuple[Chunk, Callable[[], None]]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._sink: AnswerSink | None = None
        self._on_room = on_room
        self.outcome: Outcome | None = None

    def put(self, chunk: Chunk, consumed: Callable[[], None] = _nothing) -> None:
        """Appends a chunk; ``consumed`` is called when it is read."""
        sink = self._sink
        if sink is not None and not self._chunks and not sink.is_paused:
            sink.take(chunk)
            consumed()
            return
        self._chunks.append((chunk, consumed))
        _wake(self._reader)

    @property
    def is_full(self) -> bool:
        """Whether the reader is too far behind for its replica to send more."""
        return len(self._chunks) >= FULL_ITEMS and self.outcome is None

    def finish(self, outcome: Outcome) -> None:
        """Says how the request ended; chunks written before are still read first."""
        self.outcome = outcome
        _wake(self._reader)
        self.drain()

    def flow_into(self, sink: AnswerSink) -> None:
        """From now on nothing is read: chunks go to the sink as soon as they come."""
        self._sink = sink
        self.drain()

    def drain(self) -> None:
        """Gives the sink what it has room for."""
        while self._sink is not None and self._chunks and not self._sink.is_paused:
            self._sink.take(self._next())
        if self._sink is not None and not self._chunks and self.outcome is not None:
            sink, self._sink = self._sink, None
            sink.finish(self.outcome)

    async def read(self) -> Chunk | Outcome:
        """The next chunk, or, after the last one, the outcome."""
        while not self._chunks:
            if self.outcome is not None:
                return self.outcome
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._next()

    def _next(self) -> Chunk:
        if len(self._chunks) == FULL_ITEMS:
            self._on_room()
        chunk, consumed = self._chunks.popleft()
        consumed()
        return chunk


def _wake(sleeper: "asyncio.Future[None] | None") -> None:
    if sleeper is not None and not sleeper.done():
        sleeper.set_result(None)

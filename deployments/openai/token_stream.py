"""The pipe between the attempt that won and the response that its tokens go out through."""

import asyncio
from collections import deque

from engines.contract import Chunk
from routing.request.effects import Outcome

MAX_QUEUED_CHUNKS = 64


class TokenStream:
    """Chunks in order, then exactly one outcome. One writer, one reader, one event loop.

    A client that reads slowly fills the pipe; the writer then waits, the replica's stream waits with it, and the
    engine's tokens are merged into fewer, bigger chunks.
    """

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.outcome: Outcome | None = None

    def put(self, chunk: Chunk) -> None:
        """Appends a chunk at once; who has more of them then waits for :meth:`room`."""
        self._chunks.append(chunk)
        _wake(self._reader)

    @property
    def is_full(self) -> bool:
        """Whether the reader is too far behind."""
        return len(self._chunks) >= MAX_QUEUED_CHUNKS and self.outcome is None

    async def room(self) -> None:
        """Waits while the reader is too far behind."""
        while self.is_full:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    def finish(self, outcome: Outcome) -> None:
        """Says how the request ended; chunks written before are still read first."""
        self.outcome = outcome
        _wake(self._reader)
        _wake(self._writer)

    async def read(self) -> Chunk | Outcome:
        """The next chunk, or, after the last one, the outcome."""
        while not self._chunks:
            if self.outcome is not None:
                return self.outcome
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        chunk = self._chunks.popleft()
        _wake(self._writer)
        return chunk


def _wake(sleeper: "asyncio.Future[None] | None") -> None:
    if sleeper is not None and not sleeper.done():
        sleeper.set_result(None)

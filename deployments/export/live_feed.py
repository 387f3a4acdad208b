"""One state after the other for those who watch: made while somebody does, once for all of them, and never kept."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

PERIOD_S = 1.0
MAX_WATCHERS = 20
WATCH_S = 10.0
"""How long one watch lasts; whoever wants to see more comes again. A gateway that is taken away waits for the streams
that it has open, and a proxy may take in what its client does not read: so both have a bound."""


class LiveFeed:
    """Server-sent events with what is now, for a bounded number of watchers.

    A watcher that reads slowly misses states: it is always given the latest. Nothing happens while nobody watches.

    Args:
        make: The state, as JSON.
        period_s: Between two states.
        max_watchers: How many may watch at a time.
        watch_s: How long each watch lasts.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[bytes]],
        *,
        period_s: float = PERIOD_S,
        max_watchers: int = MAX_WATCHERS,
        watch_s: float = WATCH_S,
    ) -> None:
        self._make = make
        self._period_s = period_s
        self._max_watchers = max_watchers
        self._watch_s = watch_s
        self._loop = asyncio.get_running_loop()
        self._made_at_s = -period_s
        self._coming: asyncio.Task[bytes] | None = None
        self.num_watchers = 0

    @property
    def is_full(self) -> bool:
        """Whether nobody else may watch now."""
        return self.num_watchers >= self._max_watchers

    async def watch(self) -> AsyncIterator[bytes]:
        """States for one more watcher, as events; none when there are too many."""
        if self.is_full:
            return
        self.num_watchers += 1
        until_s = self._loop.time() + self._watch_s
        try:
            while True:
                state = await asyncio.shield(self._next())
                yield b"data: " + state + b"\n\n"
                if self._loop.time() >= until_s:
                    return
        finally:
            self.num_watchers -= 1
            if self.num_watchers == 0 and self._coming is not None:
                self._coming.cancel()
                self._coming = None

    def _next(self) -> "asyncio.Task[bytes]":
        """The state that is about to be made."""
        if self._coming is None or self._coming.done():
            self._coming = self._loop.create_task(self._make_in_time())
        return self._coming

    async def _make_in_time(self) -> bytes:
        await asyncio.sleep(self._made_at_s + self._period_s - self._loop.time())
        self._made_at_s = self._loop.time()
        return await self._make()

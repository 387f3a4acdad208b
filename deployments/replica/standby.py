"""A replica that takes no requests until it is needed: it finishes what it has, and its engine sleeps meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from engines.contract import Engine

LOOK_EVERY_S = 0.2
"""How often a replica that is to sleep looks whether it has finished what it has."""


class Standby:
    """Whether a replica is in service. All methods belong to one event loop.

    Args:
        engine: Gives the engine, which falls asleep and wakes up.
        is_idle: Says whether nothing is left for it to do.
    """

    def __init__(self, engine: Callable[[], Engine], is_idle: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_idle = is_idle
        self._is_wanted = True
        self._is_asleep = False
        self._turn = asyncio.Lock()
        self._is_resting = False
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def is_warm(self) -> bool:
        """Whether gateways are to send it nothing."""
        return self._is_asleep or not self._is_wanted

    def enter_service(self) -> None:
        """It takes requests again, as soon as its engine is awake."""
        self._is_wanted = True
        self._begin(self.awake())

    def leave_service(self) -> None:
        """It takes no more, and its engine sleeps once there is none."""
        self._is_wanted = False
        if not self._is_resting:
            self._is_resting = True
            self._begin(self._rest())

    async def awake(self) -> None:
        """The engine is awake: a request may still come from a gateway that has not heard that it is to have none."""
        if self._is_asleep:
            async with self._turn:
                if self._is_asleep:  # another request has not seen to it meanwhile
                    await self._engine().wake()
                    self._is_asleep = False

    @asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[None]:
        """The engine neither falls asleep nor wakes up while the block runs; in its place another one is awake then."""
        async with self._turn:
            yield
            self._is_asleep = False

    def close(self) -> None:
        """Nothing changes any more."""
        for change in self._changes:
            change.cancel()

    def _begin(self, change: Coroutine[None, None, None]) -> None:
        """What has begun is never broken off: an engine that falls asleep has to be asleep before it can wake up."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _rest(self) -> None:
        """Sleeps whenever there is nothing to do: what wakes it up may be one late request."""
        while not self._is_wanted:
            async with self._turn:
                if self._is_idle() and not self._is_asleep:
                    self._is_asleep = True
                    await self._engine().sleep()
            await asyncio.sleep(LOOK_EVERY_S)
        self._is_resting = False

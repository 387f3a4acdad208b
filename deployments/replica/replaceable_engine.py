"""A replica's engine, in whose place another one can be started while the replica runs."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from engines.contract import Engine

HEARD_S = 2.0
"""After which gateways know that a replica takes no requests: it reports twice a second."""
LOOK_EVERY_S = 0.2


class ReplaceableEngine:
    """Which engine a replica has. All methods belong to one event loop.

    Args:
        engine: The first one.
        heard_s: After which gateways know that it takes no requests.

    Attributes:
        now: The one that there is, or was until another one is there.
        is_leaving: Whether another one is to take its place: gateways are to send nothing.
    """

    def __init__(self, engine: Engine, heard_s: float = HEARD_S) -> None:
        self.now = engine
        self.is_leaving = False
        self._heard_s = heard_s
        self._is_there = asyncio.Event()
        self._is_there.set()

    @property
    def is_there(self) -> bool:
        """Whether it runs: between two engines none does."""
        return self._is_there.is_set()

    async def there(self) -> Engine:
        """The engine, for a request; one that comes between two engines waits for the second."""
        await self._is_there.wait()
        return self.now

    async def replace(
        self, start: Callable[[], Awaitable[Engine]], has_finished: Callable[[], bool], patience_s: float
    ) -> None:
        """Ends this engine once it has nothing left to do, and starts another one.

        Args:
            start: Starts and warms it up.
            has_finished: Whether nothing is left.
            patience_s: After which it ends all the same; what it has goes on at other replicas.

        Raises:
            Exception: Whatever the start raises. There is no engine then, and requests fail.
        """
        self.is_leaving = True
        try:
            await asyncio.sleep(self._heard_s)
            await _until(has_finished, patience_s)
            self._is_there.clear()
            await self.now.shutdown()
            self.now = await start()
        finally:
            self._is_there.set()
        self.is_leaving = False


async def _until(has_finished: Callable[[], bool], patience_s: float) -> None:
    for _ in range(math.ceil(patience_s / LOOK_EVERY_S)):
        if has_finished():
            return
        await asyncio.sleep(LOOK_EVERY_S)

"""A few threads for work that takes its time: tenants take turns, whatever one of them sends."""

import asyncio
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
_Turn = asyncio.Future[None]
NICENESS = 10
"""Of the threads: where cores are short, they have a tenth of what others have."""


def _give_way() -> None:
    """On Linux, where each thread has a priority of its own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)


class TooMuchWaits(Exception):
    """A tenant has as much waiting as it may."""


class FairThreads:
    """Threads for one event loop. Each tenant waits for its own work, and for one piece of each other tenant's.

    A thread helps others only while its work does not hold Python's lock. Where cores are short it gives way to them,
    so it should not hold that for long.

    Args:
        num_threads: Pieces of work at a time.
        most_waiting: Pieces of work of one tenant that may wait.
    """

    def __init__(self, num_threads: int, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="fair", initializer=_give_way)
        self._num_free = num_threads
        self._waiting: OrderedDict[str, deque[_Turn]] = OrderedDict()

    async def run(self, tenant: str, work: Callable[[], Result]) -> Result:
        """What some work gives, or raises, when it is its tenant's turn.

        Args:
            tenant: Whose work it is.
            work: Is called in a thread. Once begun it goes on, and keeps its thread, though nobody waits for it.

        Raises:
            TooMuchWaits: Of its tenant.
        """
        loop = asyncio.get_running_loop()
        await self._turn(tenant, loop)

        def pass_on(_: "Future[Result]") -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._pass_on)

        doing = self._executor.submit(work)
        doing.add_done_callback(pass_on)
        return await asyncio.wrap_future(doing)

    async def _turn(self, tenant: str, loop: asyncio.AbstractEventLoop) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turns = self._waiting.setdefault(tenant, deque())
        if len(turns) >= self._most_waiting:
            raise TooMuchWaits
        turn: _Turn = loop.create_future()
        turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()  # it had its turn already
            else:
                self._forget(tenant, turn)
            raise

    def _forget(self, tenant: str, turn: _Turn) -> None:
        turns = self._waiting.get(tenant)
        if turns is not None and turn in turns:  # or it has been passed over already
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]

    def _pass_on(self) -> None:
        """A thread is free: the tenant that has waited longest since its last turn is next."""
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1

"""Turns at what takes its time: tenants have one after the other, whatever one of them asks for."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
_Turn = asyncio.Future[None]


class TooMuchWaits(Exception):
    """A tenant has as much waiting as it may."""


class FairTurns:
    """Turns of one event loop. Each tenant waits for its own work, and for one piece of each other tenant's.

    Args:
        num_at_a_time: Pieces of work.
        most_waiting: Pieces of work of one tenant that may wait.
    """

    def __init__(self, num_at_a_time: int, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._num_free = num_at_a_time
        self._waiting: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._doing: set[asyncio.Task[Any]] = set()

    async def run(self, tenant: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """What some work gives, or raises, when it is its tenant's turn.

        Args:
            tenant: Whose work it is.
            work: Is begun then. It goes on, and keeps its turn, though nobody waits for it.

        Raises:
            TooMuchWaits: Of its tenant.
        """
        await self._turn(tenant)
        doing = asyncio.get_running_loop().create_task(work())
        self._doing.add(doing)
        doing.add_done_callback(self._has_ended)
        return await asyncio.shield(doing)

    def _has_ended(self, doing: "asyncio.Task[Any]") -> None:
        self._doing.discard(doing)
        if not doing.cancelled():
            doing.exception()  # nobody may be left to hear of it
        self._pass_on()

    async def _turn(self, tenant: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turns = self._waiting.setdefault(tenant, deque())
        if len(turns) >= self._most_waiting:
            raise TooMuchWaits
        turn: _Turn = asyncio.get_running_loop().create_future()
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
        """A place is free: the tenant that has waited longest since its last turn is next."""
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1

"""Which pool a replica serves: its own, or the other side of the handoff while that needs it more."""

import asyncio
from collections.abc import Callable

LOOK_EVERY_S = 0.2
"""How often a replica that changes its role looks whether it has finished what it has."""


class ServedPool:
    """Of one replica. All methods belong to one event loop.

    Args:
        own: The pool that it has started in.
        has_finished: Says whether no request is left, and no KV that another engine may still pull.

    Attributes:
        name: The pool that it serves, or will when it :attr:`is_changing` no more.
    """

    def __init__(self, own: str, has_finished: Callable[[], bool]) -> None:
        self.name = own
        self._own = own
        self._has_finished = has_finished
        self._change: asyncio.Task[None] | None = None

    @property
    def is_changing(self) -> bool:
        """Whether gateways are to send it nothing, as it finishes what it has for another pool."""
        return self._change is not None

    def change_to(self, pool: str) -> None:
        """It takes no more requests, and those of this pool once it has none."""
        if pool != self.name:
            self.name = pool
            if self._change is None:
                self._change = asyncio.get_running_loop().create_task(self._finish())

    def said(self) -> dict[str, str]:
        """What it says of that: nothing in its own pool."""
        return {} if self.name == self._own else {"serves": self.name}

    def close(self) -> None:
        """Nothing changes any more."""
        if self._change is not None:
            self._change.cancel()

    async def _finish(self) -> None:
        while self._change is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._has_finished():
                self._change = None

"""Which replicas stand still: those that say so of their engines, and those that say nothing."""

import asyncio
from collections.abc import Callable, Collection

LOOK_EVERY_S = 0.25
TELL_EVERY_S = 1.0
LATE_S = 1.0
"""A look that comes so much later says more of this gateway than of replicas: what they have said is not read yet."""


class StallWatch:
    """Looks several times a second, and tells of each replica that stands still, again and again while it does.

    Args:
        stalled: Gives the ids of those that stand still.
        tell: Called with an id, and whether that replica stands still.
    """

    def __init__(self, stalled: Callable[[], Collection[str]], tell: Callable[[str, bool], None]) -> None:
        self._stalled = stalled
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._told_at_s: dict[str, float] = {}
        self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        """Nobody looks any more."""
        self._task.cancel()

    async def _run(self) -> None:
        due_s = self._loop.time()
        while True:
            due_s = max(due_s, self._loop.time()) + LOOK_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)
            if self._loop.time() - due_s < LATE_S:
                self._look(self._loop.time())

    def _look(self, now_s: float) -> None:
        stalled = self._stalled()
        for replica_id in self._told_at_s.keys() - set(stalled):
            del self._told_at_s[replica_id]
            self._tell(replica_id, False)
        for replica_id in stalled:
            if now_s - self._told_at_s.get(replica_id, -TELL_EVERY_S) >= TELL_EVERY_S:
                self._told_at_s[replica_id] = now_s
                self._tell(replica_id, True)


class NoStallWatch:
    """For gateways that don't look."""

    def close(self) -> None:
        """Nobody did."""

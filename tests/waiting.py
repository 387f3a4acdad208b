"""Waiting for something to become true: with a deadline, never for a fixed time."""

import asyncio
import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
SHORTEST_PAUSE_S, WAITED_FRACTION, LONGEST_PAUSE_S = 0.1, 0.05, 1.0
"""To look costs something: what has taken long so far is looked at less often."""


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Looks again and again until the condition holds; fails when that takes too long."""
    begun_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        waited_s = time.monotonic() - begun_s
        assert waited_s < patience_s, f"waited {patience_s:.0f} s for this in vain: {what}"
        pause.wait(min(SHORTEST_PAUSE_S + WAITED_FRACTION * waited_s, LONGEST_PAUSE_S))


async def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """The same without holding up the event loop."""
    await asyncio.to_thread(wait_until, condition, what, patience_s)


async def until_here(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """The same on the event loop itself, for what only this loop changes and may look at."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - conditions of all kinds
            await asyncio.sleep(0.001)

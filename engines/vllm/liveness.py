"""Tells a stalled engine from an idle one, and a dead one from a slow one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
CHECK_PERIOD_S = 1.0


async def answered(call: Awaitable[T], check_health: Callable[[], None]) -> T:
    """What an engine says to a call: vLLM leaves one unanswered, for good, whose engine core dies meanwhile.

    Args:
        call: To the engine core.
        check_health: Raises if that is dead.

    Raises:
        EngineUnavailable: It is, by ``check_health``.
        Exception: What else the call raises.
    """
    waiting = asyncio.ensure_future(call)
    try:
        while not (await asyncio.wait({waiting}, timeout=CHECK_PERIOD_S))[0]:
            check_health()
        return await waiting
    except Exception:
        check_health()
        raise
    finally:
        waiting.cancel()


class StallDetector:
    """Has the engine had requests for ``stall_after_s`` without making a step?

    An engine can be alive, answer every call and serve nothing: a hung collective, a dead transfer thread. Steps are
    the evidence; chunks are not, because one long prefill gives none for many seconds.

    Args:
        stall_after_s: Seconds without a step, while requests wait, after which it counts as stalled.
    """

    def __init__(self, stall_after_s: float) -> None:
        self._stall_after_s = stall_after_s
        self._num_steps = -1
        self._progress_at_s = 0.0

    def is_stalled(self, num_steps: int, num_requests: int, now_s: float) -> bool:
        """Takes in one look at the engine.

        Args:
            num_steps: Steps the engine has made so far.
            num_requests: Requests that it has taken in and not finished; one that is finished and still being read by
                a slow client is no reason for a step.
            now_s: Now.
        """
        if num_requests == 0 or num_steps != self._num_steps:
            self._num_steps = num_steps
            self._progress_at_s = now_s
            return False
        return now_s - self._progress_at_s >= self._stall_after_s

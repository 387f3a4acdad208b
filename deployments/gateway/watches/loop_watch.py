"""Ends a process whose event loop stands still for good: Serve replaces it at once, and clients that reconnect go on.

Serve itself asks three times, thirty seconds each, and has been seen to ask for ever. What stands still may be waiting
inside of C with Python's lock held, where no thread of Python's runs, so the clock that decides is faulthandler's: it
needs no lock, and says in the worker's log where each thread was.
"""

import asyncio
import faulthandler

PATIENCE_S = 60.0
"""Longer than anything takes on the loop of a crowded machine, and than a gateway may be stopped and go on."""
TOLD_PER_PATIENCE = 60
STANDARD_ERROR = 2


class LoopWatch:
    """The running event loop's; there is one in a process.

    Args:
        patience_s: How long the loop may stand still.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._tell()

    def close(self) -> None:
        """The process ends in its own time."""
        self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _tell(self) -> None:
        """The loop goes round."""
        faulthandler.dump_traceback_later(self._patience_s, exit=True, file=STANDARD_ERROR)
        self._timer = self._loop.call_later(self._patience_s / TOLD_PER_PATIENCE, self._tell)


class NoLoopWatch:
    """Before there is one."""

    def close(self) -> None:
        """Nothing looks."""

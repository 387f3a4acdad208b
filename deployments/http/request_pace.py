"""How long a client may take to send a request: half a request is held for seconds, and not for ever.

A connection costs a descriptor and some kilobytes, so thousands that never send what they begin keep others out.
"""

import asyncio
from collections.abc import Callable

GRACE_S = 20.0
"""From the connection, or a later request's first byte, to its last one."""
BYTES_PER_S = 500.0
"""Who sends more has a second more for each of so many; a body of eight megabytes has hours, if it keeps coming."""
MAX_HEAD_BYTES = 65_536
"""Of a request's line and headers."""


class RequestPace:
    """Watches one connection.

    Source: Apache's mod_reqtimeout, with its defaults for a body.

    Args:
        loop: Tells the time, and calls.
        too_slow: Called once when the request that is being sent takes too long.
    """

    __slots__ = ("_began_s", "_loop", "_num_bytes", "_timer", "_too_slow")

    def __init__(self, loop: asyncio.AbstractEventLoop, too_slow: Callable[[], None]) -> None:
        self._loop = loop
        self._too_slow = too_slow
        self._began_s = 0.0
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a request has begun, or is expected, and is not whole."""
        return self._timer is not None

    def begin(self) -> None:
        """A request is to come, or its first byte is here."""
        if self._timer is None:
            self._began_s, self._num_bytes = self._loop.time(), 0
            self._timer = self._loop.call_at(self._began_s + GRACE_S, self._look)

    def count(self, num_bytes: int) -> None:
        """So many bytes have come."""
        self._num_bytes += num_bytes

    def end(self) -> None:
        """The request is whole, or the connection over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        until_s = self._began_s + GRACE_S + self._num_bytes / BYTES_PER_S
        if self._loop.time() < until_s:
            self._timer = self._loop.call_at(until_s, self._look)
            return
        self._timer = None
        self._too_slow()

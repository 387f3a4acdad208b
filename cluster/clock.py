"""The only place that reads a clock, so that everything below it can be driven in virtual time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in float seconds, monotonic, from an origin of its own."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock; asked for every chunk of every answer, so nothing stands between."""

    now_s = staticmethod(time.monotonic)


def unix_s() -> float:
    """The time of day, for what other machines read: seconds since 1970."""
    return time.time()  # noqa: TID251 - the one place that knows it

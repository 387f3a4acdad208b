"""The only place that reads a clock, so that everything below it can be driven in virtual time."""

import math
import time
from dataclasses import dataclass
from typing import Protocol

from policies.errors import ConfigError


class Clock(Protocol):
    """Tells the time in float seconds, monotonic, from an origin of its own."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock; asked for every chunk of every answer, so nothing stands between."""

    now_s = staticmethod(time.monotonic)


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """How somebody's clock differs from another one: each node has an origin and a quartz of its own.

    Args:
        ahead_s: What it shows when the other one shows 0.
        rate: Its seconds for each of the other's, above 0.

    Raises:
        ConfigError: It goes backwards, or stands still.
    """

    ahead_s: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise ConfigError("rate", self.rate, "more than 0")

    def shown_s(self, at_s: float) -> float:
        """What it shows at a time of the other's."""
        return self.ahead_s + at_s * self.rate

    def when_s(self, shown_s: float) -> float:
        """The first of the other's times at which it shows that: a timer that is early by a bit would be set anew for
        the same time, and so for ever.
        """
        at_s = (shown_s - self.ahead_s) / self.rate
        while self.shown_s(at_s) < shown_s:
            at_s += max(math.ulp(shown_s), math.ulp(at_s))
        return at_s


NO_SKEW = ClockSkew()


def unix_s() -> float:
    """The time of day, for what other machines read: seconds since 1970."""
    return time.time()  # noqa: TID251 - the one place that knows it

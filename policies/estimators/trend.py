"""Where a noisy value is going: its level, its trend, and how far it has been from what was expected."""

import math


class Trend:
    """Holt's two exponential means, with the spread of their errors.

    Source: C. Holt, "Forecasting seasonals and trends by exponentially weighted moving averages" (1957).

    Args:
        level_memory_s: After which a value counts for little in the level.
        trend_memory_s: The same for how fast the level moves, and for how far values are from what was expected.
    """

    def __init__(self, level_memory_s: float, trend_memory_s: float) -> None:
        self._level_memory_s = level_memory_s
        self._trend_memory_s = trend_memory_s
        self._trend_per_s = 0.0
        self._variance = 0.0
        self._new = 0.0
        self._has_begun = False
        self.level = 0.0

    def add(self, value: float, period_s: float) -> None:
        """A value, so many seconds after the one before."""
        if not self._has_begun:
            self.level, self._has_begun = value, True
            return
        expected = self.level + self._trend_per_s * period_s
        new, newer = (1.0 - math.exp(-period_s / each) for each in (self._level_memory_s, self._trend_memory_s))
        self._new = new
        before, self.level = self.level, expected + new * (value - expected)
        self._trend_per_s += newer * ((self.level - before) / period_s - self._trend_per_s)
        self._variance += newer * ((value - expected) ** 2 - self._variance)

    @property
    def level_deviation(self) -> float:
        """The standard deviation of the level, where the values are noise about it: ``sqrt(w / (2 - w))`` of theirs."""
        return math.sqrt(self._variance * self._new / (2.0 - self._new))

    def after(self, ahead_s: float, deviations: float = 0.0) -> float:
        """What it will be so far ahead, and that many standard deviations above; a fall is not counted on."""
        return self.level + max(0.0, self._trend_per_s) * ahead_s + deviations * math.sqrt(self._variance)

"""Estimates in which what was seen counts the less the longer ago it was."""

import math


class FadingMean:
    """A mean in which what was seen counts the less the longer ago it was.

    It starts at 0 with the weight of one sample, and goes back there while nothing comes in: a policy that has stopped
    seeing anything because of an estimate does not go by it for ever.

    Args:
        memory_s: Time in which a sample's weight falls to 1/e.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._sum = 0.0
        self._weight = 0.0
        self._at_s = -math.inf

    def add(self, value: float, at_s: float) -> None:
        """Takes a sample in; samples come in order of time."""
        fading = math.exp((self._at_s - at_s) / self._memory_s)
        self._sum = self._sum * fading + value
        self._weight = self._weight * fading + 1.0
        self._at_s = at_s

    def at(self, now_s: float) -> float:
        """The mean as of now."""
        fading = math.exp((self._at_s - now_s) / self._memory_s)
        return self._sum * fading / (self._weight * fading + 1.0)


class FadingRate:
    """How much comes in a second, of late; 0 at first, and after a while in which nothing did.

    Args:
        memory_s: Time in which what came in fades to 1/e.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._sum = 0.0
        self._at_s = -math.inf

    def add(self, amount: float, at_s: float) -> None:
        """So much has come in; in order of time."""
        self._sum = self._sum * math.exp((self._at_s - at_s) / self._memory_s) + amount
        self._at_s = at_s

    def per_s_at(self, now_s: float) -> float:
        """The rate as of now."""
        return self._sum * math.exp((self._at_s - now_s) / self._memory_s) / self._memory_s


class FadingLine:
    """A line through pairs of values, of least squares, in which a pair counts the less the longer ago it was.

    It begins as ``y = x``, which counts as one pair more. However many come at once, the last ``most_pairs`` count for
    most: a hundred that a stall held up are no more of a reason to believe in it than those are. What ``x`` does not
    know makes a slope of least squares too small, by the share of its variance that is error (attenuation; Fuller,
    "Measurement Error Models", 1987). So the slope is below 1 only where ``y`` is less than ``x`` in the mean, and no
    smaller than that ratio.

    Args:
        memory_s: Time in which a pair's weight falls to 1/e.
        prior: Sum of squares of ``x`` about their mean that is needed to move the slope half of the way.
        most_pairs: So many weigh as much as all before them, and more.

    Attributes:
        slope: Of the line, 0 or more.
        intercept: Likewise.
    """

    def __init__(self, memory_s: float, prior: float, most_pairs: int) -> None:
        self._memory_s = memory_s
        self._fastest_fading = 1.0 - 1.0 / most_pairs
        self._prior = prior
        self._at_s = -math.inf
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.slope, self.intercept = 1.0, 0.0

    def add(self, x: float, y: float, at_s: float) -> None:
        """Takes a pair in; pairs come in order of time."""
        fading = min(self._fastest_fading, math.exp((self._at_s - at_s) / self._memory_s))
        self._at_s = at_s
        self._n = self._n * fading + 1.0
        self._x = self._x * fading + x
        self._y = self._y * fading + y
        self._xx = self._xx * fading + x * x
        self._xy = self._xy * fading + x * y
        spread = max(0.0, self._xx - self._x * self._x / self._n)
        together = self._xy - self._x * self._y / self._n
        least_squares = max(0.0, together + self._prior) / (spread + self._prior)
        self.slope = max(least_squares, min(1.0, self._y / max(self._x, 1e-9)))
        self.intercept = max(0.0, self._y - self.slope * self._x) / (self._n + 1.0)

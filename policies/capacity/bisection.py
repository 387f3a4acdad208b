"""Where something begins to hold."""

from collections.abc import Callable

BISECTIONS = 60
"""Each halves what is not known yet: of a second, less than a nanosecond is left after thirty."""


def least(holds: Callable[[float], bool], most: float) -> float:
    """The least number from 0 to ``most`` for which something holds that holds for all above it."""
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

"""What came in within a window, exactly."""

import math
from bisect import bisect_left, insort
from collections import deque


class RecentQuantile:
    """A quantile of what came in of late, exact.

    Args:
        quantile: Which, above 0 and below 1.
        window_s: What is older does not count.
        min_samples: With fewer it is not known.
        max_samples: So many of the latest count at the most; what bounds its memory and its time.
    """

    def __init__(self, quantile: float, window_s: float, min_samples: int, max_samples: int = 2000) -> None:
        self._quantile = quantile
        self._window_s = window_s
        self._min_samples = min_samples
        self._max_samples = max(min_samples, max_samples)
        self._latest: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []

    def add(self, value: float, at_s: float) -> None:
        """Takes a sample in; samples come in order of time."""
        self._latest.append((at_s, value))
        insort(self._sorted, value)
        if len(self._latest) > self._max_samples:
            self._forget_oldest()

    def at(self, now_s: float) -> float:
        """The quantile as of now; ``math.inf`` while there are too few samples."""
        while self._latest and self._latest[0][0] < now_s - self._window_s:
            self._forget_oldest()
        if len(self._sorted) < self._min_samples:
            return math.inf
        return self._sorted[int(self._quantile * len(self._sorted))]

    def _forget_oldest(self) -> None:
        _, value = self._latest.popleft()
        del self._sorted[bisect_left(self._sorted, value)]


class RecentValues:
    """What came in of late, itself.

    Args:
        window_s: What is older does not count.
        max_values: So many of the latest count at the most.
    """

    def __init__(self, window_s: float, max_values: int) -> None:
        self._window_s = window_s
        self._latest: deque[tuple[float, float]] = deque(maxlen=max_values)

    def add(self, value: float, at_s: float) -> None:
        """Takes a value in; values come in order of time."""
        self._latest.append((at_s, value))

    def at(self, now_s: float) -> list[float]:
        """Those that count now, the oldest first."""
        while self._latest and self._latest[0][0] < now_s - self._window_s:
            self._latest.popleft()
        return [value for _, value in self._latest]

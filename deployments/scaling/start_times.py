"""How long a pool's replicas take to start, by when they were asked for and when they were ready."""

import math
from collections import deque

NEWEST_WEIGHT = 0.5
"""Of the last start in what is known of all: a node that has the image and the weights starts sooner than the first."""


class StartTimes:
    """Of one pool. Replicas are taken to be ready in the order in which they were asked for.

    Attributes:
        start_s: How long a replica takes, exact to the time between two looks; 0 until one has been seen to start.
    """

    def __init__(self) -> None:
        self.start_s = 0.0
        self._asked_s: deque[float] = deque()
        self._num_ready: int | None = None

    def ask(self, number: int, now_s: float) -> None:
        """So many more were asked for."""
        self._asked_s.extend([now_s] * number)

    def see(self, num_ready: int, num_starting: int, now_s: float) -> None:
        """The pool has this now; of those that started before the first look nobody knows since when."""
        came = 0 if self._num_ready is None else max(0, num_ready - self._num_ready)
        for _ in range(min(came, len(self._asked_s))):
            self._add(now_s - self._asked_s.popleft())
        while len(self._asked_s) > num_starting:
            self._asked_s.pop()
        since_s = math.nan if self._num_ready is None else now_s
        self._asked_s.extend([since_s] * (num_starting - len(self._asked_s)))
        self._num_ready = num_ready

    def _add(self, took_s: float) -> None:
        if not math.isnan(took_s):
            weight = NEWEST_WEIGHT if self.start_s else 1.0
            self.start_s += weight * (took_s - self.start_s)

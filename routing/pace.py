"""How fast a line moves: work that leaves it per second, while there is somebody in it."""

import math

MEMORY_S = 10.0
"""Of busy time, after which what was seen counts for little."""


class Pace:
    """Watches one line.

    Only work that had to wait counts, and only time in which somebody waited: a line that is empty says nothing about
    how fast it could move. Until there is something to go by, one service-second a second for each replica.
    """

    def __init__(self) -> None:
        self._work_s = 0.0
        self._busy_s = 0.0
        self._unknown_s = 1.0
        self._since_s = math.inf

    def begins(self, now_s: float) -> None:
        """The line is not empty any more."""
        self._since_s = now_s

    def moves(self, work_s: float, now_s: float) -> None:
        """Somebody has left the line for a replica."""
        passed_s = now_s - self._since_s
        if passed_s > 0.0:
            fading = math.exp(-passed_s / MEMORY_S)
            self._busy_s = self._busy_s * fading + passed_s
            self._work_s = self._work_s * fading
            self._unknown_s *= fading
            self._since_s = now_s
        if self._busy_s:
            self._work_s += work_s

    def work_per_s(self, num_replicas: int) -> float:
        """Service-seconds a second."""
        return (self._work_s + self._unknown_s * num_replicas) / (self._busy_s + self._unknown_s)

"""What happens next in virtual time: a heap with a total order, so that a run never depends on chance.

Entries are ordered by time, then by rank, then by the order in which they were pushed. Handlers are never compared.
"""

import heapq
from collections.abc import Callable
from enum import IntEnum
from typing import Any

Handler = Callable[[float, Any], None]


class Rank(IntEnum):
    """Who goes first at the same instant. The order is part of the simulator's meaning.

    ``FAULT``: the world changes before anybody acts in it.
    ``TO_REPLICA``: a message that reaches an engine on a step's boundary is seen at that boundary.
    ``ENGINE``: engines take their boundary.
    ``TO_GATEWAY``: what engines did reaches the gateways; an answer on the deadline is in time.
    ``REPORT``: replicas report what they have just done.
    ``TIMER``: then time is up.
    ``ARRIVAL``: a new request finds everything as it is by now.
    """

    FAULT = 0
    TO_REPLICA = 1
    ENGINE = 2
    TO_GATEWAY = 3
    REPORT = 4
    TIMER = 5
    ARRIVAL = 6


class EventQueue:
    """Future events by time, rank and order of pushing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Handler, Any]] = []
        self._num_pushed = 0
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap) - len(self._cancelled)

    @property
    def num_entries(self) -> int:
        """Entries that take memory, cancelled ones included."""
        return len(self._heap)

    def push(self, at_s: float, rank: Rank, handler: Handler, argument: Any = None) -> int:
        """Has ``handler(at_s, argument)`` called at ``at_s``; returns a number that :meth:`cancel` takes."""
        self._num_pushed = number = self._num_pushed + 1
        heapq.heappush(self._heap, (at_s, rank, number, handler, argument))
        return number

    def cancel(self, number: int) -> None:
        """Forgets an event that has not happened yet."""
        self._cancelled.add(number)
        if len(self._cancelled) * 2 > len(self._heap) > 1024:
            self._heap[:] = [entry for entry in self._heap if entry[2] not in self._cancelled]
            heapq.heapify(self._heap)
            self._cancelled.clear()

    def run(self, until_s: float) -> float:
        """Lets events happen, those that they push included, up to and at ``until_s``; returns the last one's time."""
        now_s = 0.0
        heap, cancelled, pop = self._heap, self._cancelled, heapq.heappop
        while heap and heap[0][0] <= until_s:
            at_s, _, number, handler, argument = pop(heap)
            if number in cancelled:
                cancelled.discard(number)
                continue
            now_s = at_s
            handler(at_s, argument)
        return now_s

"""What happens next in virtual time: a heap with a total order, so that a run never depends on chance.

Entries are ordered by time, then by rank, then by the order in which they were pushed. Handlers are never compared.
"""

from collections.abc import Callable
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any

Handler = Callable[[float, Any], object]
_Entry = tuple[float, int, int, Handler, Any]
SLICES_PER_S = 64
"""A power of two: the ends of slices are exact."""


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
    """Future events by time, rank and order of pushing.

    A heap holds the events of the current slice of a second, those of the second's other slices wait unsorted by
    slice, and later ones by second. So the heap is small enough for the processor's caches however large the fleet is.
    Nearly all that is later than this second are deadlines, and nearly all deadlines are cancelled: they are forgotten
    where they wait.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._slice_end_s = 0.0
        self._slices: list[list[_Entry]] = [[] for _ in range(SLICES_PER_S)]
        self._next_slice = SLICES_PER_S
        self._second = -1
        self._second_end_s = 0.0
        self._later: dict[int, _Entry] = {}
        self._numbers_by_second: dict[int, list[int]] = {}
        self._num_pushed = 0
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return self.num_entries - len(self._cancelled)

    @property
    def num_entries(self) -> int:
        """Entries that take memory, cancelled ones included."""
        return len(self._heap) + sum(len(each) for each in self._slices) + len(self._later)

    def push(self, at_s: float, rank: Rank, handler: Handler, argument: Any = None) -> int:
        """Has ``handler(at_s, argument)`` called at ``at_s``, from 0 on; returns a number that :meth:`cancel` takes."""
        self._num_pushed = number = self._num_pushed + 1
        entry = (at_s, rank, number, handler, argument)
        if at_s < self._slice_end_s:
            heappush(self._heap, entry)
        elif at_s < self._second_end_s:
            self._slices[int((at_s - self._second) * SLICES_PER_S)].append(entry)
        else:
            self._later[number] = entry
            numbers = self._numbers_by_second.get(int(at_s))
            if numbers is None:
                self._numbers_by_second[int(at_s)] = [number]
            else:
                numbers.append(number)
        return number

    def cancel(self, number: int) -> None:
        """Forgets an event that has not happened yet."""
        if self._later.pop(number, None) is None:
            self._cancelled.add(number)

    def run(self, until_s: float) -> float:
        """Lets events happen, those that they push included, up to and at ``until_s``; returns the last one's time."""
        now_s = 0.0
        heap, cancelled, pop = self._heap, self._cancelled, heappop
        while heap or self._enter_next_slice():
            if heap[0][0] > until_s:
                break
            at_s, _, number, handler, argument = pop(heap)
            if number in cancelled:
                cancelled.discard(number)
                continue
            now_s = at_s
            handler(at_s, argument)
        return now_s

    def _enter_next_slice(self) -> bool:
        """Moves the events of the next slice that has any to the heap, which is empty; whether there were some."""
        while self._next_slice < SLICES_PER_S or self._enter_next_second():
            events = self._slices[self._next_slice]
            self._next_slice += 1
            self._slice_end_s = self._second + self._next_slice / SLICES_PER_S
            if events:
                self._heap += events
                events.clear()
                heapify(self._heap)
                return True
        return False

    def _enter_next_second(self) -> bool:
        """Sorts the events of the next second that has any by slice; whether there are some."""
        if not self._later:
            self._numbers_by_second.clear()
            return False
        self._second = second = min(self._numbers_by_second)
        self._slice_end_s, self._second_end_s, self._next_slice = float(second), second + 1.0, 0
        for number in self._numbers_by_second.pop(second):
            entry = self._later.pop(number, None)
            if entry is not None:
                self._slices[int((entry[0] - second) * SLICES_PER_S)].append(entry)
        return True

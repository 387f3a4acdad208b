"""What each gateway of a node has to do, in memory that all of them see.

A page has a slot for each gateway: its load, and how many connections it has taken in all. A gateway writes its own
slot alone, a word at a time, so there is no lock and nothing that a gateway could leave locked.
"""

import mmap
import os
from collections.abc import Collection
from typing import Self

NUM_SLOTS = 64
"""Gateways of one node at most."""
WORD_BYTES = 8
FREE = 2**64 - 1
"""The load of a slot that no gateway has: more than any."""
CONNECTIONS_BITS = 32


def load_of(num_requests: int, num_connections: int) -> int:
    """What gateways are compared by: requests under way, then open connections, which will bring more."""
    return num_requests << CONNECTIONS_BITS | num_connections


class LoadPage:
    """The page of one node.

    Args:
        fd: Of the memory; the page is its owner from now on.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, 2 * NUM_SLOTS * WORD_BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._loads, self._taken = self._words[:NUM_SLOTS], self._words[NUM_SLOTS:]

    @classmethod
    def create(cls) -> Self:
        """A page without gateways."""
        fd = os.memfd_create("spillway-loads")
        os.ftruncate(fd, 2 * NUM_SLOTS * WORD_BYTES)
        page = cls(fd)
        for slot in range(NUM_SLOTS):
            page.free(slot)
        return page

    def close(self) -> None:
        """This process sees it no more."""
        for view in (self._loads, self._taken, self._words):
            view.release()
        self._memory.close()
        os.close(self.fd)

    def claim(self) -> int | None:
        """A slot for another gateway, if there is one left; the listener alone gives them."""
        for slot, load in enumerate(self._loads):
            if load == FREE:
                self._loads[slot] = 0
                return slot
        return None

    def free(self, slot: int) -> None:
        """Its gateway has gone, or takes no more."""
        self._loads[slot] = FREE

    def free_all_but(self, slots: Collection[int]) -> None:
        """Only these have a gateway."""
        for slot in range(NUM_SLOTS):
            if slot not in slots:
                self.free(slot)

    def say(self, slot: int, load: int) -> None:
        """The load of a gateway, as :func:`load_of` has it."""
        self._loads[slot] = load

    def count(self, slot: int) -> None:
        """A gateway has taken a connection."""
        self._taken[slot] += 1

    def least(self) -> int:
        """The load of the gateway that has the least."""
        return min(self._loads)

    def room_below(self, load: int) -> int:
        """Connections that gateways with less than this load take before each of them has as much."""
        requests = load >> CONNECTIONS_BITS
        return sum(max(1, requests - (each >> CONNECTIONS_BITS)) for each in self._loads if each < load)

    def num_taken(self) -> int:
        """Connections that gateways have taken, all together; it only grows."""
        return sum(self._taken)

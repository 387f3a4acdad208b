"""A ring of hashed replica ids, on which every session has a place and, from there on, an order of replicas."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from policies.candidates import Candidates
from policies.views import ReplicaView

POINT_BYTES = 8


def point_of(text: str) -> int:
    """Where a text is on the ring; the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=POINT_BYTES).digest(), "big")


class HashRing:
    """Replicas at many points each, so that those who follow a lost one share its sessions.

    The order that a session sees among some replicas depends on their ids alone: not on what else is on the ring, nor
    on when it came there. So one that is away for a moment stays on the ring and is passed over by whoever asks.

    Args:
        points_per_replica: More of them spread sessions more evenly.
    """

    def __init__(self, points_per_replica: int) -> None:
        self._points_per_replica = points_per_replica
        self._members: set[str] = set()
        self._ring: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._members)

    def cover(self, replicas: Sequence[ReplicaView]) -> None:
        """Puts on the ring whoever is not there yet; forgets those who are away once they are most of it."""
        ids = [each.replica_id for each in replicas]
        if self._members.issuperset(ids) and len(self._members) <= 2 * len(ids) + 16:
            return
        if len(self._members) > 2 * len(ids) + 16:
            self._members, self._ring = set(), []
        new = [each for each in ids if each not in self._members]
        self._members.update(new)
        self._ring += [(point_of(f"{each}#{n}"), each) for each in new for n in range(self._points_per_replica)]
        self._ring.sort()

    def order(self, key: str) -> Iterator[str]:
        """Each replica once, in the order in which they follow the key's place."""
        ring = self._ring
        begin = bisect_left(ring, (point_of(key), ""))
        seen = set()
        for index in range(begin - len(ring), begin):
            replica_id = ring[index][1]
            if replica_id not in seen:
                seen.add(replica_id)
                yield replica_id


def first_within(ring: HashRing, key: str, candidates: Candidates, limit_tokens: float) -> ReplicaView:
    """From the key's place on, the first candidate with no more work than this; least work left when there is none."""
    ring.cover(candidates)
    for replica_id in ring.order(key):
        replica = candidates.find(replica_id)
        if replica is not None and replica.work_tokens <= limit_tokens:
            return replica
    return candidates.least_work_left()

"""The replicas of one pool, kept in the lists that every decision starts from.

A replica moves between the lists when its state changes, so that a question about hundreds of replicas is answered
without a look at each. The lists are handed out as they are and change with the next event: read-only, by convention,
and nobody keeps one.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, merge
from operator import attrgetter

from policies.candidates import CandidateList, Candidates, load_of
from policies.views import ReplicaView, Role
from routing.fleet.replica import Replica

_by_id = attrgetter("replica_id")

Entry = tuple[int, int, str, Replica]
"""Work, ongoing requests, id, record. An id stands for one record in a pool, so two records are never compared."""


class LoadIndex:
    """Which of a pool's live replicas with room has the least work left, and their work in all.

    A heap holds each replica's load, and its former ones until they come to the top and are thrown away. Changes of
    load are gathered and entered when somebody asks, so a balancer that never asks does not pay for the heap.
    """

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._latest: dict[str, Entry] = {}
        self._changed: dict[str, Replica] = {}
        self._total_work_tokens = 0

    def note(self, replica: Replica) -> None:
        """It has room, and a load that it did not have before."""
        self._changed[replica.replica_id] = replica

    def discard(self, replica: Replica) -> None:
        """It has no room any more."""
        self._changed.pop(replica.replica_id, None)
        latest = self._latest.pop(replica.replica_id, None)
        if latest is not None:
            self._total_work_tokens -= latest[0]

    def has(self, replica: Replica) -> bool:
        """Whether this very replica is among them."""
        self._enter_changes()
        latest = self._latest.get(replica.replica_id)
        return latest is not None and latest[3] is replica

    def least(self) -> Replica:
        """The one with the least ``(work_tokens, num_ongoing_requests, replica_id)``.

        Raises:
            ValueError: There is none.
        """
        self._enter_changes()
        heap, latest = self._heap, self._latest
        if not latest:
            raise ValueError("there is no candidate")
        while latest.get(heap[0][2]) != heap[0]:
            heappop(heap)
        return heap[0][3]

    def total_work_tokens(self) -> int:
        """Work left on all of them together."""
        self._enter_changes()
        return self._total_work_tokens

    def _enter_changes(self) -> None:
        heap, latest = self._heap, self._latest
        for replica_id, replica in self._changed.items():
            entry = replica.work_tokens, replica.num_ongoing_requests, replica_id, replica
            former = latest.get(replica_id)
            if former is not None:
                self._total_work_tokens -= former[0]
            self._total_work_tokens += entry[0]
            latest[replica_id] = entry
            heappush(heap, entry)
        self._changed.clear()
        if len(heap) > 4 * len(latest) + 16:  # former loads below the top would gather for ever
            heap[:] = latest.values()
            heapify(heap)


class IndexedCandidates(CandidateList):
    """A pool's live replicas with room, in order of id.

    Args:
        loads: Knows which of them has the least work left; follows them from here on, and is told of new loads.
    """

    def __init__(self, loads: LoadIndex) -> None:
        super().__init__()
        self._loads = loads

    def add(self, replica: Replica) -> None:
        """It has room now."""
        insort(self, replica, key=_by_id)
        self._loads.note(replica)

    def discard(self, replica: Replica) -> None:
        """It has no room any more."""
        del self[bisect_left(self, replica.replica_id, key=_by_id)]
        self._loads.discard(replica)

    def has(self, replica: object) -> bool:
        return isinstance(replica, Replica) and self._loads.has(replica)

    def least_work_left(self) -> ReplicaView:
        return self._loads.least()

    def total_work_tokens(self) -> int:
        return self._loads.total_work_tokens()


class JoinedCandidates(CandidateList):
    """The candidates of several pools as one list; each pool's own index answers for its part.

    Args:
        parts: The pools' candidates.
    """

    def __init__(self, parts: Sequence[Candidates]) -> None:
        super().__init__(merge(*parts, key=_by_id))
        self._parts = [part for part in parts if part]

    def least_work_left(self) -> ReplicaView:
        if len(self._parts) == 1:
            return self._parts[0].least_work_left()
        return min((part.least_work_left() for part in self._parts), key=load_of)

    def total_work_tokens(self) -> int:
        return sum(part.total_work_tokens() for part in self._parts)


class Pool:
    """The replicas of one pool that are up.

    Args:
        role: What they do.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.has_begun = False
        """Whether it has ever had a replica."""
        self.empty_since_s = math.inf
        """When it lost the last one; infinite while it has some, or has had none yet."""
        self.outage_s = 0.0
        """How long it had none, the last time."""
        self.version = 0
        """Another one whenever the candidates are others; their load may change without it."""
        self._up: list[Replica] = []
        self._live: list[Replica] = []
        self._quarantined: list[Replica] = []
        self._loads = LoadIndex()
        self._candidates = IndexedCandidates(self._loads)

    def replace(self, replicas: Iterable[Replica], now_s: float = 0.0) -> list[Replica]:
        """Sets the replicas that are up; returns those that are not any more."""
        before = self._up
        for replica in before:
            replica.is_up = replica.is_live = replica.is_candidate = False
        self._up = sorted(replicas, key=_by_id)
        self.has_begun = self.has_begun or bool(self._up)
        if self._up or not self.has_begun:
            self.outage_s = max(0.0, now_s - self.empty_since_s) or self.outage_s
            self.empty_since_s = math.inf
        elif before:
            self.empty_since_s = now_s
        self._live, self._quarantined, self._loads = [], [], LoadIndex()
        self._candidates = IndexedCandidates(self._loads)
        self.version += 1
        for replica in self._up:
            replica.is_up = True
            if replica.quarantined_until_s > 0.0:
                self._quarantined.append(replica)
            else:
                self._enter(replica)
        return [each for each in before if not each.is_up]

    def release(self, replica: Replica) -> None:
        """The replica is another pool's from now on."""
        if replica.is_up:
            self.replace([each for each in self._up if each is not replica])

    def is_expecting(self, now_s: float, patience_s: float) -> bool:
        """Whether it is worth waiting for replicas: some are out for a while, or the last one went not long ago."""
        return len(self._up) > len(self.live(now_s)) or now_s < self.empty_since_s + patience_s < math.inf

    def returns_in_s(self, now_s: float) -> float:
        """When it will have a replica again, if that takes as long as the last time; 0 where nothing is known."""
        return max(0.0, self.empty_since_s + self.outage_s - now_s) if self.outage_s and self.is_empty else 0.0

    @property
    def is_empty(self) -> bool:
        """Whether it has lost its last replica."""
        return self.empty_since_s < math.inf

    @property
    def up(self) -> Sequence[ReplicaView]:
        """Those that are up, in quarantine or not, in order of id."""
        return self._up

    def live(self, now_s: float) -> Sequence[ReplicaView]:
        """Those not in quarantine, in order of id."""
        if self._quarantined:
            self._end_suspicions(now_s)
        return self._live

    def with_room(self, now_s: float) -> Candidates:
        """Those not in quarantine that have a free slot, in order of id."""
        if self._quarantined:
            self._end_suspicions(now_s)
        return self._candidates

    def quarantine(self, replica: Replica) -> None:
        """The replica is spared until its ``quarantined_until_s``."""
        if replica.is_live:
            replica.is_live = False
            del self._live[bisect_left(self._live, replica.replica_id, key=_by_id)]
            self._quarantined.append(replica)
            self.sort_in(replica)

    def end_suspicion(self, replica: Replica) -> None:
        """The replica is spared no longer, if it was; one that is not up comes back like that."""
        replica.quarantined_until_s = 0.0
        if replica in self._quarantined:
            self._quarantined.remove(replica)
            self._enter(replica)

    def sort_in(self, replica: Replica) -> None:
        """Follows a change of the replica's load or state."""
        belongs = replica.is_live and replica.has_room
        if belongs is not replica.is_candidate:
            replica.is_candidate = belongs
            self.version += 1
            (self._candidates.add if belongs else self._candidates.discard)(replica)
        elif belongs:
            self._loads.note(replica)

    def _enter(self, replica: Replica) -> None:
        replica.is_live = True
        insort(self._live, replica, key=_by_id)
        self.sort_in(replica)

    def _end_suspicions(self, now_s: float) -> None:
        over = [each for each in self._quarantined if now_s >= each.quarantined_until_s]
        for replica in over:
            self.end_suspicion(replica)

"""What a balancer picks from: replicas in order of id."""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from policies.views import ReplicaView

_id_of = attrgetter("replica_id")
load_of = attrgetter("work_tokens", "num_ongoing_requests", "replica_id")
"""What least work left compares: a replica's work, then its requests, then, so that there is no tie, its id."""


class Candidates(Sequence[ReplicaView]):
    """Replicas to pick from, in order of replica id."""

    @abstractmethod
    def least_work_left(self) -> ReplicaView:
        """The candidate with the least ``(work_tokens, num_ongoing_requests, replica_id)``, without a look at each.

        Raises:
            ValueError: There is no candidate.
        """

    @abstractmethod
    def total_work_tokens(self) -> int:
        """Work left on all of them together, without a look at each."""

    def find(self, replica_id: str) -> ReplicaView | None:
        """The candidate of that id, if there is one; O(log n)."""
        index = bisect_left(self, replica_id, key=_id_of)
        if index < len(self) and self[index].replica_id == replica_id:
            return self[index]
        return None

    def has(self, replica: object) -> bool:
        """Whether this very object is among them; O(log n)."""
        replica_id = getattr(replica, "replica_id", None)
        if not isinstance(replica_id, str):
            return False
        index = bisect_left(self, replica_id, key=_id_of)
        return index < len(self) and self[index] is replica


class CandidateList(list[ReplicaView], Candidates):
    """Candidates without an index: a list that somebody has sorted by replica id, for few replicas and for tests."""

    def least_work_left(self) -> ReplicaView:
        return min(self, key=load_of)

    def total_work_tokens(self) -> int:
        return sum(each.work_tokens for each in self)

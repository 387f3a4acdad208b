"""This gateway's view of the replicas: who is up, who is under suspicion, and how much work each has left."""

from collections.abc import Iterable, Sequence

from policies.views import CandidateList, Candidates, ReplicaView, Role
from routing.attempts import Attempt
from routing.events import ReplicaInfo
from routing.pool import Pool
from routing.replica import Replica


class Fleet:
    """Replicas by id, with slots; a replica that has gone keeps its record until its last attempt has ended."""

    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._pools = {role: Pool() for role in Role}

    def replace(self, role: Role, infos: Iterable[ReplicaInfo]) -> None:
        """Sets the replicas of a role; those known already keep their accounts."""
        up = {info.replica_id: self._replicas.get(info.replica_id) or Replica(info) for info in infos}
        self._replicas.update(up)
        for replica in self._pools[role].replace(up.values()):
            self._forget_if_idle(replica)

    def live(self, role: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas of a role that are up and not under suspicion, in order of id; valid until the next change."""
        return self._pools[role].live(now_s)

    def with_room(self, role: Role, now_s: float, excluding: frozenset[str] = frozenset()) -> Candidates:
        """Live replicas that have a free slot, without the excluded ones; valid until the next change."""
        candidates = self._pools[role].with_room(now_s)
        if not excluding:
            return candidates
        return CandidateList(each for each in candidates if each.replica_id not in excluding)

    def suspect(self, replica_id: str, until_s: float) -> None:
        """Nothing is sent to the replica before ``until_s``."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.suspect_until_s = max(replica.suspect_until_s, until_s)
            self._pools[replica.role].suspect(replica)

    def report(self, replica_id: str, work_tokens: int, kv_cache_usage: float) -> None:
        """Takes in a replica's report; one from a replica that has gone is ignored."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.report(work_tokens, kv_cache_usage)
            self._pools[replica.role].sort_in(replica)

    def take(self, attempt: Attempt) -> None:
        """The attempt holds a slot from here on."""
        replica = self._replicas[attempt.replica_id]
        replica.take(attempt.work_tokens)
        self._pools[replica.role].sort_in(replica)

    def give_back(self, attempt: Attempt) -> None:
        """The attempt's slot is free again."""
        replica = self._replicas[attempt.replica_id]
        replica.give_back(attempt.work_tokens)
        self._pools[replica.role].sort_in(replica)
        if not replica.is_up:
            self._forget_if_idle(replica)

    def move(self, attempt: Attempt, replica_id: str) -> None:
        """Moves the slot to the replica that really took the attempt, if this gateway knows it."""
        if replica_id == attempt.replica_id or replica_id not in self._replicas:
            return
        self.give_back(attempt)
        attempt.replica_id = replica_id
        self.take(attempt)

    def _forget_if_idle(self, replica: Replica) -> None:
        if replica.num_ongoing_requests == 0:
            self._replicas.pop(replica.replica_id, None)

    @property
    def num_ongoing_requests(self) -> int:
        """Slots taken in all, replicas that have gone included."""
        return sum(each.num_ongoing_requests for each in self._replicas.values())

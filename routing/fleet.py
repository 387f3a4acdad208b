"""This gateway's view of the replicas: who is up, who is under suspicion, and how much work each has left."""

from bisect import insort
from collections.abc import Iterable, Sequence

from policies.views import ReplicaView, Role
from routing.attempts import Attempt
from routing.events import ReplicaInfo


class Replica:
    """One replica's record; policies see it as :class:`policies.views.ReplicaView`."""

    __slots__ = (
        "_reported_work_tokens",
        "_work_tokens_at_report",
        "_work_tokens_here",
        "info",
        "kv_cache_usage",
        "num_ongoing_requests",
        "replica_id",
        "role",
        "suspect_until_s",
    )

    def __init__(self, info: ReplicaInfo) -> None:
        self.info = info
        self.replica_id = info.replica_id
        self.role = info.role
        self.num_ongoing_requests = 0
        self.kv_cache_usage = 0.0
        self.suspect_until_s = 0.0
        self._work_tokens_here = 0
        self._work_tokens_at_report = 0
        self._reported_work_tokens = 0

    @property
    def max_ongoing_requests(self) -> int:
        return self.info.max_ongoing_requests

    @property
    def kv_capacity_tokens(self) -> int:
        return self.info.kv_capacity_tokens

    @property
    def has_room(self) -> bool:
        return self.num_ongoing_requests < self.info.max_ongoing_requests

    @property
    def work_tokens(self) -> int:
        corrected = self._reported_work_tokens + self._work_tokens_here - self._work_tokens_at_report
        return max(self._work_tokens_here, corrected)

    def take(self, work_tokens: int) -> None:
        """A slot is taken."""
        self.num_ongoing_requests += 1
        self._work_tokens_here += work_tokens

    def give_back(self, work_tokens: int) -> None:
        """A slot is free again."""
        self.num_ongoing_requests -= 1
        self._work_tokens_here -= work_tokens

    def report(self, work_tokens: int, kv_cache_usage: float) -> None:
        """The replica's own account replaces what was known about other gateways' work."""
        self._reported_work_tokens = work_tokens
        self._work_tokens_at_report = self._work_tokens_here
        self.kv_cache_usage = kv_cache_usage


class Fleet:
    """Replicas by id, with slots; a replica that has gone keeps its record until its last attempt has ended."""

    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._up: dict[Role, list[Replica]] = {role: [] for role in Role}

    def replace(self, role: Role, infos: Iterable[ReplicaInfo]) -> None:
        """Sets the replicas of a role; those known already keep their accounts."""
        up: list[Replica] = []
        for info in infos:
            replica = self._replicas.get(info.replica_id)
            if replica is None:
                replica = self._replicas[info.replica_id] = Replica(info)
            insort(up, replica, key=lambda each: each.replica_id)
        left = [each for each in self._up[role] if each not in up]
        self._up[role] = up
        for replica in left:
            self._forget_if_idle(replica)

    def live(self, role: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas of a role that are up and not under suspicion, in order of id."""
        return [each for each in self._up[role] if now_s >= each.suspect_until_s]

    def with_room(self, role: Role, now_s: float, excluding: frozenset[str] = frozenset()) -> Sequence[ReplicaView]:
        """Live replicas that have a free slot, without the excluded ones."""
        return [
            each
            for each in self._up[role]
            if now_s >= each.suspect_until_s and each.has_room and each.replica_id not in excluding
        ]

    def suspect(self, replica_id: str, until_s: float) -> None:
        """Nothing is sent to the replica before ``until_s``."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.suspect_until_s = max(replica.suspect_until_s, until_s)

    def report(self, replica_id: str, work_tokens: int, kv_cache_usage: float) -> None:
        """Takes in a replica's report; one from a replica that has gone is ignored."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.report(work_tokens, kv_cache_usage)

    def take(self, attempt: Attempt) -> None:
        """The attempt holds a slot from here on."""
        self._replicas[attempt.replica_id].take(attempt.work_tokens)

    def give_back(self, attempt: Attempt) -> None:
        """The attempt's slot is free again."""
        replica = self._replicas[attempt.replica_id]
        replica.give_back(attempt.work_tokens)
        if replica not in self._up[replica.role]:
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

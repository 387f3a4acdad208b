"""Sheddable attempts in flight, by replica: those that can give their places to somebody else."""

from collections.abc import Iterable, Iterator
from heapq import merge

from policies.views import RequestView, Role
from routing.attempts import Attempt
from routing.life import RequestLife


class Stoppable:
    """One of them, as policies see it: a :class:`policies.attempt_views.InFlightView`.

    Args:
        life: Its request.
        attempt: The attempt.
    """

    __slots__ = ("attempt", "life")

    def __init__(self, life: RequestLife, attempt: Attempt) -> None:
        self.life = life
        self.attempt = attempt

    @property
    def request(self) -> RequestView:
        return self.life.request

    @property
    def replica_id(self) -> str:
        return self.attempt.replica_id

    @property
    def sent_at_s(self) -> float:
        return self.attempt.sent_at_s

    @property
    def num_preemptions(self) -> int:
        return self.life.num_preemptions

    @property
    def can_stop(self) -> bool:
        """Whether nothing is lost but time: no KV is on its way, and what has been given out can be gone on with."""
        attempt, life = self.attempt, self.life
        if attempt.is_cancelled or life.is_cut or (attempt.stage is Role.DECODE and not attempt.has_first_token):
            return False
        return life.request.is_resumable or not life.is_answering


class StoppableAttempts:
    """All of them."""

    def __init__(self) -> None:
        self._by_replica: dict[str, dict[str, Stoppable]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_replica)

    def add(self, stoppable: Stoppable) -> None:
        """An attempt holds a place from here on."""
        attempt = stoppable.attempt
        self._by_replica.setdefault(attempt.replica_id, {})[attempt.attempt_id] = stoppable

    def discard(self, attempt: Attempt) -> Stoppable | None:
        """It does not any more, if it did."""
        here = self._by_replica.get(attempt.replica_id)
        found = None if here is None else here.pop(attempt.attempt_id, None)
        if here is not None and not here:
            del self._by_replica[attempt.replica_id]
        return found

    def num_on(self, replica_id: str) -> int:
        """How many hold a place on a replica."""
        return len(self._by_replica.get(replica_id, ()))

    def newest_first(self, replica_ids: Iterable[str]) -> Iterator[Stoppable]:
        """Those on some replicas, the latest sent first; nobody may be added or discarded meanwhile."""
        on_each = (reversed(self._by_replica[each].values()) for each in replica_ids if each in self._by_replica)
        return merge(*on_each, key=_age)


def _age(stoppable: Stoppable) -> float:
    return -stoppable.attempt.sent_at_s

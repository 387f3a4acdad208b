"""An idle replica, if there is one."""

from typing import ClassVar

from policies.balancing.pair import draw_pair
from policies.candidates import Candidates
from policies.contracts import Need, Rng
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class JoinIdleQueue:
    """Which replica takes the attempt? One that has nothing to do; when all are busy, the better of two at random.

    Rule: draw two different candidates uniformly, and take the first of them that is idle. When neither is, take the
        candidate with the least work left if that is idle, else the one of the two with fewer ``work_tokens``. A
        replica is idle when it has no work and no request. The draw comes first so that gateways with the same stale
        view do not all pick the same one of several idle replicas.
    State: none beyond the random stream.
    Consumes: no signal; the views' work accounts, which need the replicas' reports.
    Complexity: O(1), and O(log n) amortized in the number of candidates when neither of the two is idle.
    Failure mode: an engine that batches is hardly ever idle and need not be: under load this is the better of two by
        work, and an idle replica is taken even when the request's prefix is cached on a busy one.
    Source: Lu, Xie, Kliot, Geller, Larus, Greenberg, "Join-Idle-Queue: A novel load balancing algorithm for dynamically
        scalable web services", Performance Evaluation 68(11), 2011; theirs falls back to a random replica.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, rng: Rng) -> None:
        self._rng = rng

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        one, other = draw_pair(candidates, self._rng)
        if _is_idle(one):
            return one
        if _is_idle(other):
            return other
        least = candidates.least_work_left()
        if _is_idle(least):
            return least
        return other if other.work_tokens < one.work_tokens else one


def _is_idle(replica: ReplicaView) -> bool:
    return replica.work_tokens == 0 and replica.num_ongoing_requests == 0

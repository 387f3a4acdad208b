"""The replica with the longest match, however busy it is."""

from typing import ClassVar

from policies.candidates import Candidates
from policies.contracts import Need
from policies.signals import Signal
from policies.views import PrefixView, ReplicaView, RequestView


class LongestPrefix:
    """Which replica takes the attempt? The one that has most of the prompt in its cache.

    Rule: the longest match among the candidates, the first that is named wins a tie; without a match, least work left.
    State: none; the prefix index is shared with the rest of the router.
    Consumes: no signal; the prefix index.
    Complexity: O(matched replicas x log n) at worst, O(log n) as a rule: the longest match is looked at first.
    Failure mode: what everybody's prompt begins with sends everybody to one replica, which is why it is here: as the
        baseline that an affinity with a bound on load has to be compared with.
    Source: the cache-aware scheduling of SGLang (Zheng et al., NeurIPS 2024), taken to several replicas without care.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.PREFIXES, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, prefixes: PrefixView) -> None:
        self._prefixes = prefixes

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        for replica_id in self._prefixes.cached_tokens(request):
            replica = candidates.find(replica_id)
            if replica is not None:
                return replica
        return candidates.least_work_left()

"""The replica on which the request and what is there already cost least."""

from typing import ClassVar

from policies.candidates import Candidates
from policies.contracts import Need
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import PrefixView, ReplicaView, RequestView


class LeastCost:
    """Which replica takes the attempt? The one where its work and the work that is there already are least together.

    Rule: minimum of ``work_tokens + match_weight * (prompt tokens - cached tokens)``; the one with the least work wins
        a tie. A match of so many tokens outweighs as much work, and no more: there is no bound to set.
    State: none; the prefix index is shared with the rest of the router.
    Consumes: no signal; the prefix index and the views' work accounts, which need the replicas' reports.
    Complexity: O(k log n) for the k longest matches up to the first that could not win even on an idle replica.
    Failure mode: a token that waits to be computed counts as much as a token of KV that is read in each step; where
        answers are long the latter is far cheaper to stand behind, and ``match_weight`` above 1 makes up for it.
    Source: the cost function of NVIDIA Dynamo's KV router: new prefill blocks plus active blocks.

    Args:
        prefixes: What replicas have in their caches.
        match_weight: What a token that is to be computed counts, against one of the work that is there already.

    Raises:
        ConfigError: A weight out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.PREFIXES, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, prefixes: PrefixView, match_weight: float = 1.0) -> None:
        if not 0 <= match_weight < float("inf"):
            raise ConfigError("policies.balancing.params.match_weight", match_weight, "a finite number, at least 0")
        self._prefixes = prefixes
        self._match_weight = match_weight

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        best = candidates.least_work_left()
        cached = self._prefixes.cached_tokens(request)
        least_work_tokens, weight = best.work_tokens, self._match_weight
        best_cost = least_work_tokens - weight * cached.get(best.replica_id, 0)
        for replica_id, tokens in cached.items():  # the longest match first
            if least_work_tokens - weight * tokens >= best_cost:
                break
            replica = candidates.find(replica_id)
            if replica is not None and replica.work_tokens - weight * tokens < best_cost:
                best, best_cost = replica, replica.work_tokens - weight * tokens
        return best

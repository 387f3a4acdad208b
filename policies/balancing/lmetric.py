"""The replica with the least product of prompt tokens to compute and requests that run."""

from typing import ClassVar

from policies.candidates import Candidates, load_of
from policies.contracts import Need
from policies.signals import Signal
from policies.views import PrefixView, ReplicaView, RequestView


class Lmetric:
    """Which replica takes the attempt? The one where few prompt tokens are to be computed and few requests run.

    Rule: minimum of ``(prefill_tokens + prompt tokens - cached tokens) * (num_ongoing_requests + 1)``: what is computed
        before the first token if the attempt goes there, times the batch that it joins; the one with the least work
        wins a tie. A product has no weight to set: what either factor is multiplied by cancels in the comparison.
    State: none; the prefix index is shared with the rest of the router.
    Consumes: no signal; the prefix index and the views' accounts, which need the replicas' reports.
    Complexity: O(n): every candidate is looked at.
    Failure mode: the batch is what this gateway has open there, so with several gateways each sees its own part. A
        request of few tokens counts as much in the batch as one of many, and a replica without any request wins
        whatever is cached elsewhere, unless nearly all of the prompt is.
    Source: LMetric, arXiv 2603.15202, 2026.

    Args:
        prefixes: What replicas have in their caches.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.PREFIXES, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, prefixes: PrefixView) -> None:
        self._prefixes = prefixes

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        cached = self._prefixes.cached_tokens(request)

        def score(replica: ReplicaView) -> tuple[int, tuple[int, int, str]]:
            new_tokens = replica.prefill_tokens + request.prompt_tokens - cached.get(replica.replica_id, 0)
            return new_tokens * (replica.num_ongoing_requests + 1), load_of(replica)

        return min(candidates, key=score)

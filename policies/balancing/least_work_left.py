"""The replica with the least work left, in tokens."""

from typing import ClassVar

from policies.candidates import Candidates
from policies.contracts import Need
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class LeastWorkLeft:
    """Which replica takes the attempt? The one that has the fewest tokens of work before it.

    Rule: minimum of ``(work_tokens, num_ongoing_requests, replica_id)``; on a prefill replica work is prompt tokens,
        on the others KV tokens.
    State: none.
    Consumes: no signal; the views' work accounts, which need the replicas' reports.
    Complexity: O(log n) in the number of candidates, amortized: the candidates are indexed by their work.
    Failure mode: gateways with the same stale view all pick the same replica; the correction by what this gateway has
        sent since the report softens that but can't see what the others sent.
    Source: the dispatching rule LWL of Harchol-Balter, "Performance Modeling and Design of Computer Systems", ch. 24.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        return candidates.least_work_left()

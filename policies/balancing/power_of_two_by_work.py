"""The one with less work of two at random."""

from typing import ClassVar

from policies.balancing.pair import draw_pair
from policies.candidates import Candidates
from policies.contracts import Need, Rng
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class PowerOfTwoByWork:
    """Which replica takes the attempt? Of two at random, the one with less work left.

    Rule: draw two different candidates uniformly; fewer ``work_tokens`` wins, the first drawn wins a tie.
    State: none beyond the random stream.
    Consumes: no signal; the views' work accounts, which need the replicas' reports.
    Complexity: O(1).
    Failure mode: with few replicas it often looks at the two worst of them.
    Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001, with work in
        the place of requests.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, rng: Rng) -> None:
        self._rng = rng

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        one, other = draw_pair(candidates, self._rng)
        return other if other.work_tokens < one.work_tokens else one

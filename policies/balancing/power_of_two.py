"""The better of two at random."""

from typing import ClassVar

from policies.balancing.pair import draw_pair
from policies.candidates import Candidates
from policies.contracts import Need, Rng
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class PowerOfTwo:
    """Which replica takes the attempt? Of two at random, the one with fewer ongoing requests.

    Rule: draw two different candidates uniformly; fewer ``num_ongoing_requests`` wins, the first drawn wins a tie.
    State: none beyond the random stream.
    Consumes: no signal; the views' counts of this gateway's ongoing requests.
    Complexity: O(1).
    Failure mode: it counts requests, and requests differ 1000x in cost: a replica with one 8,000-token prompt looks
        as idle as one with a 20-token prompt.
    Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, rng: Rng) -> None:
        self._rng = rng

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        one, other = draw_pair(candidates, self._rng)
        return other if other.num_ongoing_requests < one.num_ongoing_requests else one

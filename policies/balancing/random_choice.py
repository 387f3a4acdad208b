"""A replica at random."""

from typing import ClassVar

from policies.candidates import Candidates
from policies.contracts import Need, Rng
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class RandomChoice:
    """Which replica takes the attempt? Any, with equal chance.

    Rule: uniform over the candidates.
    State: none beyond the random stream.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: balls into bins: the fullest replica is well above the mean, and cost differences make it worse.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, rng: Rng) -> None:
        self._rng = rng

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        return candidates[self._rng.randrange(len(candidates))]

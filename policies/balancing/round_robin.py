"""Replicas in turn."""

from bisect import bisect_right
from typing import ClassVar

from policies.candidates import Candidates
from policies.contracts import Need
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class RoundRobin:
    """Which replica takes the attempt? The next one after the last, by replica id.

    Rule: smallest id above the last pick, wrapping round; survives replicas that come and go.
    State: the last id picked. Each gateway keeps a cursor of its own.
    Consumes: nothing.
    Complexity: O(log n) in the number of candidates.
    Failure mode: blind to cost: when every k-th request is long, one replica can get all of them.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self) -> None:
        self._last_id = ""

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        following = bisect_right(candidates, self._last_id, key=lambda each: each.replica_id)
        chosen = candidates[following % len(candidates)]
        self._last_id = chosen.replica_id
        return chosen

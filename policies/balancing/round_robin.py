"""Replicas in turn."""

from collections.abc import Sequence
from typing import ClassVar

from policies.contracts import Need
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class RoundRobin:
    """Which replica takes the attempt? The next one after the last, by replica id.

    Rule: smallest id above the last pick, wrapping round; survives replicas that come and go.
    State: the last id picked. Each gateway keeps a cursor of its own.
    Consumes: nothing.
    Complexity: O(n) in the number of candidates.
    Failure mode: blind to cost: when every k-th request is long, one replica can get all of them.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()

    def __init__(self) -> None:
        self._last_id = ""

    def pick(self, request: RequestView, candidates: Sequence[ReplicaView], now_s: float) -> ReplicaView:
        chosen = next((each for each in candidates if each.replica_id > self._last_id), candidates[0])
        self._last_id = chosen.replica_id
        return chosen

    def observe(self, signal: Signal) -> None:
        return None

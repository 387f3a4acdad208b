"""Ejection switched off."""

from collections.abc import Sequence
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import EjectionDecision
from policies.signals import Signal
from policies.views import ReplicaView


class NeverEject:
    """Which replicas get nothing for a while? None.

    Rule: a replica that is up takes what it is given; only after a loss it is spared for ``quarantine_s``.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: a replica that is slow without failing goes on getting requests, and one that fails them at once looks
        idle and gets nearly all of them.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def decide(self, pool: Sequence[ReplicaView], now_s: float) -> Sequence[EjectionDecision]:
        return ()

"""Hedging switched off."""

import math
from typing import ClassVar

from policies.attempt_views import AttemptView
from policies.candidates import Candidates
from policies.contracts import Need
from policies.signals import Signal
from policies.views import FleetView, ReplicaView, RequestView


class NoHedge:
    """How long to wait before a second attempt is sent? For ever.

    Rule: one attempt at a time.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: a request that meets a sick replica waits for it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        return math.inf

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return None

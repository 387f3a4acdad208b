"""Preemption switched off."""

from collections.abc import Sequence
from typing import ClassVar

from policies.attempt_views import InFlightView, SlotsView
from policies.contracts import Need
from policies.signals import Signal
from policies.views import RequestView


class NeverPreempt:
    """Which requests in flight are preempted for those that wait? None.

    Rule: what has begun goes on.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: a request whose class goes first waits until a place is free, however long the answers are that
        sheddable requests are in the middle of.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def victims(self, request: RequestView, num_wanted: int, slots: SlotsView, now_s: float) -> Sequence[InFlightView]:
        return ()

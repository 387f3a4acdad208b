"""Load shedding switched off."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import KEEP, Keep
from policies.signals import Signal
from policies.views import BacklogView, RequestView


class NeverShed:
    """Is this request among those that the fleet gives up now? No.

    Rule: keep everything.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: under overload, retries of late requests keep the fleet overloaded after the burst has gone.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Keep:
        return KEEP

    def shed_fraction(self, now_s: float) -> float:
        return 0.0

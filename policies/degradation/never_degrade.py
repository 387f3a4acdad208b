"""Degradation switched off."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import AS_ASKED, Degradation
from policies.signals import Signal
from policies.views import BacklogView, RequestView


class NeverDegrade:
    """How may this request be answered more cheaply? Not at all.

    Rule: as it asks. The baseline of every degradation experiment.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: what there is no room for can only wait or be refused.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        return AS_ASKED

"""Admission switched off."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import ADMIT, Admit
from policies.signals import Signal
from policies.views import BacklogView, RequestView


class AlwaysAdmit:
    """May this request come in? Yes.

    Rule: admit everything. The baseline of every admission experiment.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: past the knee everything is served late; goodput falls to a few per cent of capacity.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        return ADMIT

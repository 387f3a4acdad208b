"""Each class in order of arrival."""

from typing import ClassVar

from policies.contracts import Need
from policies.signals import Signal
from policies.views import RequestView


class ByArrival:
    """Which of its class goes next inside an engine? The one that came first.

    Rule: all have the same place, and among equals engines go by arrival.
    State: none. Routing does not ask it.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: one long prompt holds up every short one of its class that came behind it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def place(self, request: RequestView, prefill_tokens: int) -> int:
        return 0

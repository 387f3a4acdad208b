"""Classes in order, and each in order of arrival."""

from typing import ClassVar

from policies.contracts import Need
from policies.signals import Signal
from policies.views import RequestView


class ByClass:
    """Which of the requests that wait inside an engine goes next? One of the class that matters most.

    Rule: the rank of its class: critical, standard, sheddable; among equals the engine's own order, that of arrival.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: it does nothing where engines take requests in order of arrival, as they do without
        ``scheduling_policy: priority``. Within a class one long prompt holds up every short one behind it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def priority(self, request: RequestView, prefill_tokens: int) -> int:
        return request.priority.rank

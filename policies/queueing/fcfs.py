"""First come, first served."""

from typing import ClassVar

from policies.contracts import Need
from policies.signals import Signal
from policies.views import RequestView


class Fcfs:
    """Which of the waiting requests goes next? The one that has waited longest.

    Rule: order of arrival in this queue. The baseline of every queueing experiment.
    State: the waiting requests, in order.
    Consumes: nothing.
    Complexity: O(1) for each operation.
    Failure mode: one long prompt holds up every short one behind it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self) -> None:
        self._waiting: dict[str, RequestView] = {}

    def push(self, request: RequestView, now_s: float) -> None:
        self._waiting[request.request_id] = request

    def peek(self, now_s: float) -> RequestView:
        if not self._waiting:
            raise IndexError("no request waits")
        return next(iter(self._waiting.values()))

    def pop(self, now_s: float) -> RequestView:
        return self._waiting.pop(self.peek(now_s).request_id)

    def remove(self, request: RequestView) -> bool:
        return self._waiting.pop(request.request_id, None) is not None

    def __len__(self) -> int:
        return len(self._waiting)

"""The more important class first, but whoever has waited long enough goes before it."""

import math
from typing import ClassVar

from policies.contracts import Need
from policies.errors import ConfigError
from policies.queueing.work_index import Key, WorkIndex
from policies.signals import Signal
from policies.views import RequestView, Role


class PriorityAged:
    """Which of the waiting requests goes next? One of the most important class, unless another waited so much longer.

    Rule: the smallest ``rank - age / aging_tau_s``: a request's class improves by one with every ``aging_tau_s`` that
        it waits. Inside a class it is the order of arrival. All age alike, so who goes first never changes while two
        wait, and a request is passed by those of a class better by r only that come within ``r * aging_tau_s`` after
        it: its wait is bounded by the work that is there when it comes and what better classes bring in that time.
    State: the waiting requests, sorted.
    Consumes: nothing.
    Complexity: O(sqrt n) with a small constant, see :class:`policies.queueing.work_index.WorkIndex`.
    Failure mode: overload that lasts longer than ``aging_tau_s`` fills the queue with requests that have aged, and new
        ones of the best class wait behind them. Lower classes must be refused, or give up, before they are that old.
        It orders what waits here; what waits inside engines is in their order.
    Source: priority with aging, as operating systems have had it against starvation since the 1960s.

    Args:
        stage: What its requests wait for.
        aging_tau_s: Waiting that is worth one class, seconds; ``inf``: classes are strict, and the lowest may starve.

    Raises:
        ConfigError: The time is not above 0.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, stage: Role = Role.UNIFIED, aging_tau_s: float = 30.0) -> None:
        if not 0 < aging_tau_s <= math.inf:
            raise ConfigError("policies.queueing.params.aging_tau_s", aging_tau_s, "more than 0; .inf: no aging")
        self._stage = stage
        self._aging_tau_s = aging_tau_s
        self._waiting = WorkIndex()

    def push(self, request: RequestView, now_s: float) -> None:
        self._waiting.push(request, self._key(request), request.geometry.work_s(self._stage))

    def peek(self, now_s: float) -> RequestView:
        return self._waiting.peek()

    def pop(self, now_s: float) -> RequestView:
        return self._waiting.pop()

    def remove(self, request: RequestView) -> bool:
        return self._waiting.remove(request.request_id)

    def work_ahead_s(self, request: RequestView) -> float:
        """Exact."""
        return self._waiting.work_before_s(request.request_id, self._key(request))

    def __len__(self) -> int:
        return len(self._waiting)

    def _key(self, request: RequestView) -> Key:
        rank = request.priority.rank
        if math.isinf(self._aging_tau_s):
            return rank, request.arrival_s
        return rank * self._aging_tau_s + request.arrival_s, rank

"""Whose first token is due first."""

from typing import ClassVar

from policies.contracts import Need
from policies.queueing.work_index import Key, WorkIndex
from policies.signals import Signal
from policies.views import RequestView, Role


class Edf:
    """Which of the waiting requests goes next? The one whose first token is due first.

    Rule: the smallest ``first_token_by_s``, which is the arrival and the request's SLO; among equals the earlier
        arrival. Nobody is passed by a request that came after that time, so every wait ends: it is bounded by the work
        that comes until then. Without SLOs deadlines take their place, and with the same time for all it is the
        order of arrival.
    State: the waiting requests, sorted.
    Consumes: nothing.
    Complexity: O(sqrt n) with a small constant, see :class:`policies.queueing.work_index.WorkIndex`.
    Failure mode: with more work than can be done in time it serves those that are almost late, and then late, one after
        the other: nearly all miss. It takes an admission policy that refuses what can't be in time.
    Source: earliest deadline first; optimal on one machine as long as all deadlines can be met.

    Args:
        stage: What its requests wait for.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, stage: Role = Role.UNIFIED) -> None:
        self._stage = stage
        self._waiting = WorkIndex()

    def push(self, request: RequestView, now_s: float) -> None:
        self._waiting.push(request, _key(request), request.geometry.work_s(self._stage))

    def peek(self, now_s: float) -> RequestView:
        return self._waiting.peek()

    def pop(self, now_s: float) -> RequestView:
        return self._waiting.pop()

    def remove(self, request: RequestView) -> bool:
        return self._waiting.remove(request.request_id)

    def work_ahead_s(self, request: RequestView) -> float:
        """Exact."""
        return self._waiting.work_before_s(request.request_id, _key(request))

    def __len__(self) -> int:
        return len(self._waiting)


def _key(request: RequestView) -> Key:
    return request.first_token_by_s or request.deadline_s, request.arrival_s

"""Short jobs first, but whoever has waited long enough goes before them."""

import heapq
import math
from typing import ClassVar

from policies.contracts import Need
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import RequestView


class SjfAged:
    """Which of the waiting requests goes next? A short one, unless a longer one came so much earlier.

    Rule: the smallest ``arrival_s + factor * W``; W is the prefill work in service-seconds, from the request's geometry
        where the engine's rates are known, else ``uncached prompt tokens * token_s``. One request passes another that
        came earlier only while the difference of their ages is less than ``factor`` times that of their work.
    State: a heap of the waiting requests; those taken out of turn stay in it until they come to the top or are half
        of it.
    Consumes: nothing.
    Complexity: O(log n) for push and pop, O(1) amortized for removal.
    Failure mode: it orders what waits here; where engines have so many slots that requests wait inside them, there is
        nothing to order. In overload long requests wait for all that came in the last ``factor * W`` seconds.
    Source: aging by size, ``arrival + A * W``; the index-based form of shortest job first with a bound on starvation.

    Args:
        factor: Seconds of waiting that one second of work is worth; 0 is first come, first served.
        token_s: What a prompt token takes when nobody knows the engine's rates, seconds.

    Raises:
        ConfigError: A number below 0, or ``token_s`` of 0.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, factor: float = 3.0, token_s: float = 1e-4) -> None:
        if not 0 <= factor < math.inf:
            raise ConfigError("policies.queueing.params.factor", factor, "0 or more")
        if not 0 < token_s < math.inf:
            raise ConfigError("policies.queueing.params.token_s", token_s, "more than 0")
        self._factor = factor
        self._token_s = token_s
        self._num_pushed = 0
        self._heap: list[tuple[float, int, str]] = []
        self._waiting: dict[str, tuple[int, RequestView]] = {}

    def push(self, request: RequestView, now_s: float) -> None:
        key = request.arrival_s + self._factor * self._work_s(request)
        self._num_pushed += 1  # among equals the one that was pushed first
        self._waiting[request.request_id] = self._num_pushed, request
        heapq.heappush(self._heap, (key, self._num_pushed, request.request_id))

    def peek(self, now_s: float) -> RequestView:
        if not self._waiting:
            raise IndexError("no request waits")
        while not self._is_current(*self._heap[0][1:]):
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][2]][1]

    def pop(self, now_s: float) -> RequestView:
        request = self.peek(now_s)
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request

    def remove(self, request_id: str) -> bool:
        if self._waiting.pop(request_id, None) is None:
            return False
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = [each for each in self._heap if self._is_current(each[1], each[2])]
            heapq.heapify(self._heap)
        return True

    def __len__(self) -> int:
        return len(self._waiting)

    def _is_current(self, number: int, request_id: str) -> bool:
        found = self._waiting.get(request_id)
        return found is not None and found[0] == number

    def _work_s(self, request: RequestView) -> float:
        geometry = request.geometry
        return geometry.prefill_s or (geometry.uncached_tokens or request.prompt_tokens) * self._token_s

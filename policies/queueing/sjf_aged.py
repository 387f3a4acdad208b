"""Short jobs first, but whoever has waited long enough goes before them."""

import math
from typing import ClassVar

from policies.contracts import Need
from policies.errors import ConfigError
from policies.queueing.work_index import Key, WorkIndex
from policies.signals import Signal
from policies.views import RequestView, Role


class SjfAged:
    """Which of the waiting requests goes next? A short one, unless a longer one came so much earlier.

    Rule: the smallest ``arrival_s + factor * W``; W is the prefill work in service-seconds, from the request's geometry
        where the engine's rates are known, else ``uncached prompt tokens * token_s``. One request passes another that
        came earlier only while the difference of their ages is less than ``factor`` times that of their work.
    State: the waiting requests, sorted.
    Consumes: nothing.
    Complexity: O(sqrt n) with a small constant, see :class:`policies.queueing.work_index.WorkIndex`.
    Failure mode: it orders what waits here; where engines have so many slots that requests wait inside them, there is
        nothing to order. In overload long requests wait for all that came in the last ``factor * W`` seconds.
    Source: aging by size, ``arrival + A * W``; the index-based form of shortest job first with a bound on starvation.

    Args:
        stage: What its requests wait for.
        factor: Seconds of waiting that one second of work is worth; 0 is first come, first served.
        token_s: What a prompt token takes when nobody knows the engine's rates, seconds.

    Raises:
        ConfigError: A number below 0, or ``token_s`` of 0.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, stage: Role = Role.UNIFIED, factor: float = 3.0, token_s: float = 1e-4) -> None:
        if not 0 <= factor < math.inf:
            raise ConfigError("policies.queueing.params.factor", factor, "0 or more")
        if not 0 < token_s < math.inf:
            raise ConfigError("policies.queueing.params.token_s", token_s, "more than 0")
        self._stage = stage
        self._factor = factor
        self._token_s = token_s
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
        geometry = request.geometry
        work_s = geometry.prefill_s or (geometry.uncached_tokens or request.prompt_tokens) * self._token_s
        return (request.arrival_s + self._factor * work_s,)

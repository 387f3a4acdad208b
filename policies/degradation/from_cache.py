"""Known answers in the place of new ones while the queue is long."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import AS_ASKED, Degradation
from policies.degradation.pressure import check_least, pressure
from policies.signals import Signal
from policies.views import BacklogView, RequestView

FROM_CACHE = Degradation(may_use_cache=True)


class FromCache:
    """How may this request be answered more cheaply? With the answer that an equal request was given.

    Rule: where the host has such an answer, it does from ``from_pressure`` on. Pressure is the predicted wait over the
        SLO for the time to the first token; with 0 a known answer is always used.
    State: none; the answers are the host's.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: whatever the answer depended on beside the prompt and the sampling is as old as the answer. Requests
        are rarely equal to the last token, conversations and retrieved text never: look at the hits before relying on
        it. A retry after an answer that was no good gets the same one.
    Source: common knowledge; the exact-match caches of proxies in front of models.

    Args:
        from_pressure: Where known answers begin to do, 0 or more.

    Raises:
        ConfigError: The pressure is out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.SERVICE_RATES, Need.RESPONSE_CACHE})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, from_pressure: float = 0.0) -> None:
        check_least("from_pressure", from_pressure, 0)
        self._from_pressure = from_pressure

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        if not request.has_cached_answer or pressure(request, backlog) < self._from_pressure:
            return AS_ASKED
        return FROM_CACHE

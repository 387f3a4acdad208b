"""Answers that end after a while, with what there is of them, while the queue is long."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import AS_ASKED, Degradation
from policies.degradation.pressure import Ramp, by_class
from policies.signals import Signal
from policies.views import BacklogView, RequestView

LIMIT_S: Mapping[str, float] = MappingProxyType({"standard": 10.0, "sheddable": 3.0})
LEAST_LIMIT_S = 0.001


class OutputTimeLimit:
    """How may this request be answered more cheaply? By what there is of its answer when its time is up.

    Rule: with ``s`` rising from 0 to 1 while the pressure rises from ``from_pressure`` to ``full_pressure``, an answer
        ends ``limit / s`` seconds after its first token, ``limit`` being that of the request's class: when it is whole
        at no pressure, after twice the limit half-way up. Pressure is the predicted wait over the SLO for the time to
        the first token. Classes without a limit are answered in full, and so is a request whose deadline comes first.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: that of ``cap_output``, and one more: the slower the engines are, the less of an answer fits into the
        limit, so a fleet that is slow for another reason than load gives up answers for nothing. How many tokens a
        limit saves is not known at intake, so admission counts the whole answer.
    Source: brownout (Klein et al., ICSE 2014); imprecise computation: Liu et al., "Algorithms for scheduling imprecise
        computations" (IEEE Computer 24:5, 1991), where a task that is stopped early leaves a usable result.

    Args:
        limit_s: Seconds from the first token at full pressure, by class; those that are not named have no limit.
        from_pressure: Where answers begin to end early.
        full_pressure: Where they end the earliest.

    Raises:
        ConfigError: An unknown class, a limit of less than a millisecond, or pressures out of order.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self, *, limit_s: Mapping[str, float] = LIMIT_S, from_pressure: float = 0.0, full_pressure: float = 0.2
    ) -> None:
        self._limit_s = by_class("limit_s", limit_s, least=LEAST_LIMIT_S)
        self._ramp = Ramp(from_pressure, full_pressure)

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        limit_s = self._limit_s.get(request.priority, math.inf)
        if limit_s >= (request.deadline_s - now_s) * self._ramp.severity(request, backlog):
            return AS_ASKED
        return Degradation(output_time_limit_s=limit_s / self._ramp.severity(request, backlog))

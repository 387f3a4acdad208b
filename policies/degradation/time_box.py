"""Answers that end after a while, with what there is of them, while the line is long."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import AS_ASKED, Degradation
from policies.degradation.pressure import Ramp, by_class
from policies.signals import Signal
from policies.views import BacklogView, RequestView

BOX_S: Mapping[str, float] = MappingProxyType({"standard": 10.0, "sheddable": 3.0})
LEAST_BOX_S = 0.001


class TimeBox:
    """How may this request be answered more cheaply? By what there is of its answer when its time is up.

    Rule: with ``s`` rising from 0 to 1 while the pressure rises from ``from_pressure`` to ``full_pressure``, an answer
        ends ``box / s`` seconds after its first token, ``box`` being that of the request's class: when it is whole at
        no pressure, after twice the box half-way up. Pressure is the predicted wait over the time to the first token
        that is promised. Classes without a box are answered in full, and so is a request whose deadline comes first.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: that of ``cap_output``, and one more: the slower the engines are, the less of an answer fits into the
        box, so a fleet that is slow for another reason than load gives up answers for nothing. How many tokens a box
        saves is not known at the door, so admission counts the whole answer.
    Source: brownout (Klein et al., ICSE 2014); imprecise computation: Liu et al., "Algorithms for scheduling imprecise
        computations" (IEEE Computer 24:5, 1991), where a task that is stopped early leaves a usable result.

    Args:
        box_s: Seconds from the first token at full pressure, by class; those that are not named have no box.
        from_pressure: Where answers begin to end early.
        full_pressure: Where they end the earliest.

    Raises:
        ConfigError: An unknown class, a box of less than a millisecond, or pressures out of order.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self, *, box_s: Mapping[str, float] = BOX_S, from_pressure: float = 0.0, full_pressure: float = 0.2
    ) -> None:
        self._box_s = by_class("box_s", box_s, least=LEAST_BOX_S)
        self._ramp = Ramp(from_pressure, full_pressure)

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        box_s = self._box_s.get(request.priority, math.inf)
        if box_s >= (request.deadline_s - now_s) * self._ramp.severity(request, backlog):
            return AS_ASKED
        return Degradation(time_box_s=box_s / self._ramp.severity(request, backlog))

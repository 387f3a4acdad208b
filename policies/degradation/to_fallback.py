"""Another model's answers while the queue is long."""

from collections.abc import Sequence
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import AS_ASKED, Degradation
from policies.degradation.pressure import FIELD, check_least, pressure
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import BacklogView, Priority, RequestView


class ToFallback:
    """How may this request be answered more cheaply? In a lane that is there for that: by a smaller model, say.

    Rule: from ``from_pressure`` on, a request of one of the ``classes`` goes to the fallback lane. Pressure is the
        predicted wait over the SLO for the time to the first token. So the lane's own replicas keep as much to do
        as the pressure says, and the rest goes over. Admission judges it by the queue that it would wait in there.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: it does not look at the fallback's queue: when that is full too, what is sent there is refused, though
        it might have been let in at home a little later. Work in the fallback's queue is reckoned at the speed of the
        first pool's engines. Another model answers otherwise; who compares answers sees it.
    Source: model fallbacks of LLM gateways; cascades of models: Chen, Zaharia, Zou, "FrugalGPT" (2023).

    Args:
        lane: The fallback lane.
        fallback_lanes: Those that there are; the host knows them.
        from_pressure: From where on requests go there.
        classes: Whose.

    Raises:
        ConfigError: There is no such fallback lane, no such class, or the pressure is out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        lane: str,
        fallback_lanes: Sequence[str],
        from_pressure: float = 0.2,
        classes: Sequence[str] = (Priority.STANDARD.value, Priority.SHEDDABLE.value),
    ) -> None:
        if lane not in fallback_lanes:
            raise ConfigError(f"{FIELD}.lane", lane, f"one of the lanes with `fallback: true`: {list(fallback_lanes)}")
        known = [each.value for each in Priority]
        if isinstance(classes, str) or not set(classes) <= set(known):
            raise ConfigError(f"{FIELD}.classes", classes, f"a list of classes, of {known}")
        check_least("from_pressure", from_pressure, 0)
        self._classes = frozenset(Priority(each) for each in classes)
        self._from_pressure = from_pressure
        self._answer = Degradation(lane=lane)

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        if request.priority not in self._classes or pressure(request, backlog) < self._from_pressure:
            return AS_ASKED
        return self._answer

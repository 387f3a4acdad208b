"""Shorter answers while the queue is long."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import AS_ASKED, Degradation
from policies.degradation.pressure import Ramp, by_class
from policies.signals import Signal
from policies.views import BacklogView, RequestView

CAP_TOKENS: Mapping[str, float] = MappingProxyType({"standard": 256, "sheddable": 64})


class CapOutput:
    """How may this request be answered more cheaply? By an answer that is the shorter, the longer the queue is.

    Rule: with ``s`` rising from 0 to 1 while the pressure rises from ``from_pressure`` to ``full_pressure``, an answer
        has at most ``cap / s`` tokens, ``cap`` being that of the request's class: all that it asks for at no pressure,
        twice the cap half-way up. Pressure is the predicted wait over the SLO for the time to the first token.
        Classes without a cap are answered in full.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: it sees the queue before the first stage. Decode replicas that are full show there only once they hold
        prompts up; and where prompts are what takes the time, shorter answers buy little: the cap is paid and the queue
        stays. Without ``prefill_window_tokens`` on unified replicas, or with several gateways, much of the queue is
        where nobody looks. A cap that leaves the replicas with less than they can do empties the queue, answers are
        whole again, and since that is felt only after as long as an answer takes, the queue swings: better a cap that
        is not quite enough, and an admission policy for the rest. Predictors that do not know of cut answers learn
        that answers are short.
    Source: brownout: Klein, Maggio, Arzen, Hernandez-Rodriguez, "Brownout: building more robust cloud applications"
        (ICSE 2014), whose optional content is here the rest of an answer; its controller is left out, since the queue
        itself is the integral of what was too much.

    Args:
        cap_tokens: Longest answer at full pressure, by class; those that are not named have none.
        from_pressure: Where answers begin to get shorter.
        full_pressure: Where they are as short as they get.

    Raises:
        ConfigError: An unknown class, a cap below 1, or pressures out of order.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        cap_tokens: Mapping[str, float] = CAP_TOKENS,
        from_pressure: float = 0.0,
        full_pressure: float = 0.2,
    ) -> None:
        self._cap_tokens = by_class("cap_tokens", cap_tokens, least=1)
        self._ramp = Ramp(from_pressure, full_pressure)

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        cap_tokens = self._cap_tokens.get(request.priority)
        if cap_tokens is None:
            return AS_ASKED
        severity = self._ramp.severity(request, backlog)
        if cap_tokens >= request.max_output_tokens * severity:
            return AS_ASKED
        return Degradation(max_output_tokens=int(cap_tokens / severity))

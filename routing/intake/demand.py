"""What requests ask of each stage, whether they are let in or not: what a fleet is sized by."""

from collections import defaultdict
from typing import ClassVar

from policies.contracts import Need
from policies.pool_views import Demand
from policies.signals import Offered, Signal
from policies.views import RequestView, Role
from routing.sizing.geometry import ServiceRates


class DemandMeter:
    """Adds up what is offered, by stage and lane. A client's retries, which say so, count once.

    Args:
        rates: How fast engines are.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Offered})

    def __init__(self, rates: ServiceRates) -> None:
        self._rates = rates
        self._sums: dict[tuple[Role, str], list[float]] = defaultdict(lambda: [0.0] * 5)

    def observe(self, signal: Signal) -> None:
        """A request has come in."""
        assert isinstance(signal, Offered)
        request = signal.request
        if request.retry_count:
            return
        prompt, output = request.geometry.uncached_tokens, request.geometry.output_tokens
        held_tokens = output * (request.prompt_tokens + output / 2)
        for stage in signal.stages:
            added = 1.0, self._added_s(request, stage), prompt, output, held_tokens
            self._sums[stage, request.lane] = [*map(sum, zip(self._sums[stage, request.lane], added, strict=True))]

    def of(self, stage: Role, lane: str) -> Demand:
        """What was asked of a stage by requests of a lane, since the start."""
        num_requests, added_s, prompt_tokens, output_tokens, held_tokens = self._sums[stage, lane]
        return Demand(
            num_requests=num_requests,
            added_s=added_s,
            prompt_tokens=0.0 if stage is Role.DECODE else prompt_tokens,
            output_tokens=0.0 if stage is Role.PREFILL else output_tokens,
            held_tokens=0.0 if stage is Role.PREFILL else held_tokens,
        )

    def _added_s(self, request: RequestView, stage: Role) -> float:
        """Those that compute prompts alone make the steps for them, too."""
        geometry, rates = request.geometry, self._rates
        prompt_s = rates.compute_s(request.prompt_tokens, geometry.uncached_tokens)
        if stage is Role.PREFILL:
            return prompt_s + geometry.uncached_tokens * rates.step_s / rates.step_tokens
        answer_s = rates.answer_s(request.prompt_tokens, geometry.output_tokens)
        return answer_s if stage is Role.DECODE else prompt_s + answer_s

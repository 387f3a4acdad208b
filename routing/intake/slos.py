"""The SLO of a request: what its tenant, its class, or everybody is promised."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.views import Priority, RequestView
from routing.lanes.lanes import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latencies that a request's user expects. What is left out is not promised.

    Args:
        ttft_s: Time to first token, in seconds.
        ttft_s_per_1k_prompt_tokens: The same for each 1,000 tokens of the prompt; the longer one of the two counts.
        tpot_s: Mean time per further token, in seconds.
    """

    ttft_s: float = math.inf
    ttft_s_per_1k_prompt_tokens: float = 0.0
    tpot_s: float = math.inf

    def first_token_s(self, prompt_tokens: int) -> float:
        """The longest time to first token for a prompt of so many tokens; ``math.inf``: none is promised."""
        by_length_s = self.ttft_s_per_1k_prompt_tokens * prompt_tokens / 1000
        return by_length_s if by_length_s and self.ttft_s == math.inf else max(self.ttft_s, by_length_s)

    def limits_s(self, prompt_tokens: int) -> dict[str, float]:
        """What is promised for a prompt of so many tokens: ``ttft`` and ``tpot``, in seconds."""
        limits_s = {"ttft": self.first_token_s(prompt_tokens), "tpot": self.tpot_s}
        return {name: limit_s for name, limit_s in limits_s.items() if limit_s < math.inf}


NO_SLO = Slo()
"""Nothing is promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slos:
    """Whose SLO is which: a tenant's own goes before its class's, that before everybody's, and that before its lane's.

    A lane's is the last resort, because lanes are about where a request is served: a border that moves between two
    lanes would change what users are promised.

    Args:
        default: Of everybody of whom nothing else is said.
        by_class: Of requests of a class.
        by_tenant: Of requests of a tenant, by its name.
    """

    default: Slo = NO_SLO
    by_class: Mapping[Priority, Slo] = field(default_factory=dict)
    by_tenant: Mapping[str, Slo] = field(default_factory=dict)

    def of(self, request: RequestView, lane: Lane) -> Slo:
        """The SLO of a request that is in a lane."""
        own = self.by_tenant.get(request.tenant) or self.by_class.get(request.priority) or self.default
        return own if own != NO_SLO else of_lane(lane)

    def first_token_by_s(self, request: RequestView, lane: Lane) -> float:
        """By when the first token is to be there: never after the request's deadline.

        A retry of a client's has what is left of its logical request's time.
        """
        began_s = request.arrival_s if request.first_arrival_s is None else request.first_arrival_s
        return min(request.deadline_s, began_s + self.of(request, lane).first_token_s(request.prompt_tokens))

    def names_in(self, lane: Lane) -> set[str]:
        """Which latencies, of ``ttft`` and ``tpot``, may be promised to requests of a lane."""
        all_of_them = of_lane(lane), self.default, *self.by_class.values(), *self.by_tenant.values()
        return {name for slo in all_of_them for name in slo.limits_s(1)}


def of_lane(lane: Lane) -> Slo:
    """What requests of a lane are promised where nobody has said anything of themselves."""
    return Slo(ttft_s=lane.ttft_slo_s, tpot_s=lane.tpot_slo_s)


NO_SLOS = Slos()
"""Every request has its lane's."""

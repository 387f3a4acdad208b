"""SLOs as a YAML file writes them, the same in a deployment and in a simulated scenario."""

import math
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from cluster.config.strict import Strict, misfit
from policies.views import Priority
from routing.intake.slos import NO_SLO, Slo, Slos

Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SloConfig(Strict):
    """Latencies that a request's user expects.

    Args:
        ttft_s: Time to first token, in seconds.
        ttft_s_per_1k_prompt_tokens: The same for each 1,000 tokens of the prompt; the longer one of the two counts.
        tpot_s: Mean time per further token, in seconds.
    """

    ttft_s: Limit | None = None
    ttft_s_per_1k_prompt_tokens: Limit | None = None
    tpot_s: Limit | None = None

    def build(self) -> Slo:
        """The same as :mod:`routing` takes it."""
        return Slo(
            ttft_s=self.ttft_s or math.inf,
            ttft_s_per_1k_prompt_tokens=self.ttft_s_per_1k_prompt_tokens or 0.0,
            tpot_s=self.tpot_s or math.inf,
        )


class NamedSloConfig(SloConfig):
    """The SLO of a class or a tenant: it stands in the place of everybody's, and says all that is promised."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.build() == NO_SLO:
            raise misfit("", {}, "at least one of ttft_s, ttft_s_per_1k_prompt_tokens, tpot_s")
        return self


class SlosConfig(SloConfig):
    """What requests are promised: a tenant's own SLO goes before its class's, that before the one given here, and that
    before the SLO of its lane.

    Args:
        by_class: Of ``critical``, ``standard`` or ``sheddable`` requests.
        by_tenant: Of a tenant's requests, by its name.
    """

    by_class: Mapping[Priority, NamedSloConfig] = {}
    by_tenant: Mapping[str, NamedSloConfig] = {}

    def slos(self) -> Slos:
        """The same as :mod:`routing` takes it."""
        return Slos(
            default=self.build(),
            by_class={priority: slo.build() for priority, slo in self.by_class.items()},
            by_tenant={tenant: slo.build() for tenant, slo in self.by_tenant.items()},
        )

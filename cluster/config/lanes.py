"""Lanes as a YAML file writes them, the same in a deployment and in a simulated scenario."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from cluster.config.named_policy import NamedPolicy, PolicyConfig
from cluster.config.strict import Strict, misfit
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane, TokenRange

Slo = Annotated[float, Field(gt=0)]


class TokenRangeConfig(Strict):
    """Lengths from ``at_least`` to less than ``below``.

    Args:
        at_least: The shortest that belongs here.
        below: The shortest that is too long; without it there is no end.
    """

    at_least: int = Field(default=0, ge=0)
    below: int | None = Field(default=None, ge=1)

    def build(self) -> TokenRange:
        """The same as :mod:`routing` takes it."""
        return TokenRange(self.at_least, math.inf if self.below is None else self.below)


class LaneConfig(Strict):
    """One lane, as :class:`routing.lanes.lanes.Lane` has it.

    Args:
        name: Names it in logs, in the header ``x-spillway-lane`` and in the label ``lane``.
        prompt_tokens: Prompts that belong here.
        output_tokens: Expected answers that belong here.
        pools: Pools that serve it: for every stage of a plan at least one.
        borrows_from: Lanes of longer requests whose idle replicas it may use when none of its own is idle.
        reserve: How many idle replicas of a role it keeps for itself: it lends only what is idle beyond them.
        fallback: Requests come here only when a degradation policy sends them; then ranges say nothing.
        ttft_slo_s: SLO of the time to first token, in seconds, of requests that ``policies.slos`` promises nothing.
        tpot_slo_s: SLO of the time per further token, likewise.
    """

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")
    prompt_tokens: TokenRangeConfig = TokenRangeConfig()
    output_tokens: TokenRangeConfig = TokenRangeConfig()
    pools: tuple[str, ...] = Field(min_length=1)
    borrows_from: tuple[str, ...] = ()
    reserve: int = Field(default=0, ge=0)
    fallback: bool = False
    ttft_slo_s: Slo = math.inf
    tpot_slo_s: Slo = math.inf

    def build(self) -> Lane:
        """The same as :mod:`routing` takes it."""
        lengths = {"prompt_tokens": self.prompt_tokens.build(), "output_tokens": self.output_tokens.build()}
        return Lane(**{**dict(self), **lengths})


class LanesConfig(Strict):
    """All lanes, and what decides about them; no lanes means that everything may go everywhere.

    Args:
        lanes: From short to long.
        classifier: Which lane is this request for?
        guard: Do lanes help now?
    """

    lanes: tuple[LaneConfig, ...] = ()
    classifier: NamedPolicy = PolicyConfig(name="first_that_fits")
    guard: NamedPolicy = PolicyConfig(name="always_on")

    @model_validator(mode="after")
    def _decides_about_something(self) -> Self:
        if not self.lanes:
            for name, default in (("classifier", "first_that_fits"), ("guard", "always_on")):
                if (given := getattr(self, name)).name != default or given.params:
                    raise misfit(name, given.name, f"{default} without parameters, where there are no lanes")
        return self

    def spec(self) -> LanesSpec:
        """The same as :func:`routing.assembly.build_dispatcher` takes it."""
        return LanesSpec(
            lanes=tuple(lane.build() for lane in self.lanes),
            classifier=self.classifier.choice(),
            guard=self.guard.choice(),
        )

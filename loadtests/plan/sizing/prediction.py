"""What engines are like, and what pools of them come to, whichever way requests go through them."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadtests.plan.figures import Figure, Group, WorkedFigure, worked_out
from loadtests.plan.sizing.demand import Demand, Floats
from loadtests.plan.sizing.engine import Engine
from loadtests.plan.sizing.first_tokens import FirstTokens, bound_seconds
from policies.capacity.bounds import Verdict, what_binds
from policies.errors import ConfigError
from policies.views import Role

MOST_REPLICAS = 4096
QUANTILES = (0.5, 0.99)
TTFT_MARGIN = 1.7
"""First tokens come up to so many times later than is predicted, since replicas have a queue each and prompts share
steps: measured against the simulator (docs/how-to/capacity.md). SLOs have to be kept all the same.
"""
Replicas = Mapping[Role, int]
"""How many of each role there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Pools of some size under a demand.

    Args:
        replicas: Their sizes.
        figures: What they come to, with formulas.
        attained_fraction: Of the requests, within their SLOs, with margins for what is not predicted.
        fits: Whether replicas hold the KV and the sequences of all who decode, in the mean.
        binds: What requests lose time to.
    """

    replicas: Replicas
    figures: Sequence[WorkedFigure]
    attained_fraction: float
    fits: bool
    binds: Verdict

    def keeps(self, attained_fraction: float) -> bool:
        """Whether so large a part of the requests are predicted to be within their SLOs."""
        return self.fits and self.attained_fraction >= attained_fraction


class Pools(Protocol):
    """A demand on a fleet, whatever its size."""

    @property
    def inputs(self) -> dict[str, float]:
        """The demand's means and the engine's terms, by the names that formulas have for them."""
        ...

    def at(self, replicas: Replicas) -> Prediction:
        """A fleet of that size.

        Raises:
            ConfigError: It is too small for the work.
        """
        ...

    def fewest(self, attained_fraction: float) -> Prediction:
        """The smallest fleet that is predicted to keep the SLOs of so large a part of the requests.

        Raises:
            ConfigError: None does: an SLO is shorter than a request takes alone.
        """
        ...


def figures_at(group: Group, inputs: Mapping[str, float], **sizes: int) -> list[WorkedFigure]:
    """A group's figures for pools of these sizes."""
    return list(worked_out(group.model_copy(update={"inputs": {**inputs, **sizes}})))


def values_of(figures: Sequence[WorkedFigure]) -> dict[str, float]:
    """Figures by name."""
    return {each.figure.name: each.value for each in figures}


def predicted(
    demand: Demand,
    engine: Engine,
    replicas: Replicas,
    figures: Sequence[WorkedFigure],
    *,
    first: FirstTokens,
    ttft: str,
    slow_tpot_s: float,
) -> Prediction:
    """A prediction by what steps come to and by each request's first token.

    Args:
        demand: Whose.
        engine: Of those who decode.
        replicas: Sizes of the pools.
        figures: ``tpot_s``, ``decoding`` and ``kv_residency`` among them.
        first: When each first token comes.
        ttft: The formula of that, in words.
        slow_tpot_s: Time per token of a request that is disturbed more than others.
    """
    values, counts, ttft_s = values_of(figures), demand.counts, first.ttft_s
    answers = demand.output_tokens.astype(np.float64)
    e2e_s, late_s = first.e2e_s(answers, values["tpot_s"]), TTFT_MARGIN * ttft_s
    gap_s = first.come_before_kv * (first.handoffs_s + first.steps_s - values["tpot_s"])
    rest_s = gap_s + (answers - 1) * slow_tpot_s
    within = (late_s <= demand.ttft_slo_s) & (rest_s / np.maximum(1, answers - 1) <= demand.tpot_slo_s)
    within &= late_s + rest_s <= demand.e2e_slo_s
    e2e = "ttft + (output_tokens - 1) * tpot_s, with a handoff after the first token"
    return Prediction(
        replicas=replicas,
        figures=[*figures, *_quantiles("ttft", ttft_s[counts], ttft), *_quantiles("e2e", e2e_s[counts], e2e)],
        attained_fraction=float(within[counts].mean()),
        fits=values["decoding"] <= engine.max_num_seqs and values["kv_residency"] <= 1.0,
        binds=what_binds(bound_seconds(demand, engine, first, values["tpot_s"])),
    )


def smallest(
    least: int, at: Callable[[int], Prediction], keeps: Callable[[Prediction], bool], role: Role
) -> Prediction:
    """The first size that keeps what all above it keep.

    Raises:
        ConfigError: Not even the last one does.
    """
    sizes = range(least, MOST_REPLICAS + 1)
    if not sizes or not keeps(at(sizes[-1])):
        kept = f"{at(sizes[-1]).attained_fraction:.1%}" if sizes else "none"
        allowed = f"{kept} are with {MOST_REPLICAS} {role} replicas, as far as is predicted, with its margins"
        raise ConfigError("slos", "requests within theirs", allowed)
    return at(sizes[bisect_left(sizes, True, key=lambda size: keeps(at(size)))])


def check_sizes(replicas: Replicas, least: Replicas) -> None:
    """Whether pools are large enough for the work, and no larger than anybody has.

    Raises:
        ConfigError: They are not.
    """
    for role, number in replicas.items():
        if not least[role] <= number <= MOST_REPLICAS:
            allowed = f"{least[role]} to {MOST_REPLICAS}: the work fills {least[role] - 1}"
            raise ConfigError(f"{role} replicas", number, allowed)


def _quantiles(name: str, values_s: Floats, formula: str) -> list[WorkedFigure]:
    assumes = "Waits by recursion over the demand's own arrivals: one queue, in order of arrival."
    return [
        WorkedFigure(
            figure=Figure(name=f"{name}_p{quantile * 100:g}_s", formula=formula, assumes=assumes),
            value=float(np.quantile(values_s, quantile)),
        )
        for quantile in QUANTILES
    ]

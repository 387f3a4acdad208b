"""What a pool of unified replicas comes to under a demand."""

from pathlib import Path

import numpy as np

from loadtests.plan.figures import read_figures
from loadtests.plan.sizing.demand import Demand
from loadtests.plan.sizing.engine import Engine, means_of
from loadtests.plan.sizing.first_tokens import FirstTokens
from loadtests.plan.sizing.prediction import (
    Prediction,
    Replicas,
    check_sizes,
    figures_at,
    predicted,
    smallest,
    values_of,
)
from loadtests.plan.sizing.waits import waits_at_servers
from policies.views import Role

FILE = Path(__file__).with_name("unified.yaml")
TPOT_MARGIN = 2.3
"""Times per token at their 99th percentile, over the mean: others' prompts stand between an answer's steps, none of
which takes longer than a full one.
"""
TTFT = "wait + half a step + max(own prompt * slowness, a step) + front end"


class UnifiedPool:
    """A demand on unified replicas, whatever their number.

    The time that steps take is that of a fluid: requests come at the demand's mean rate, and each step takes what any
    step takes and what its contents add. First tokens wait for the prompts before them: the G/G/c recursion of Kiefer
    and Wolfowitz over the demand's own arrivals, prompts at the pace that answers leave them.

    Args:
        demand: What is asked for.
        engine: Of every replica.

    Attributes:
        least: With fewer the queue grows without end; by role.
    """

    def __init__(self, demand: Demand, engine: Engine) -> None:
        self._demand, self._engine, rates = demand, engine, engine.rates
        (self._group,) = read_figures(FILE)
        prompts = demand.prompt_tokens
        compute_s = np.array([rates.compute_s(each, each) for each in prompts.tolist()])
        self._prefill_s = np.array([rates.prefill_s(each, each) for each in prompts.tolist()])
        self._queued_s = compute_s + prompts * rates.step_s / rates.step_tokens
        self._inputs = {**means_of(demand, engine), "prompt_s": float(compute_s.mean())}
        load = demand.rate_per_s * (self._inputs["prompt_s"] + self._inputs["answer_s"])
        self.least = {Role.UNIFIED: int(load) + 1}

    @property
    def inputs(self) -> dict[str, float]:
        return self._inputs

    def fewest(self, attained_fraction: float) -> Prediction:
        return smallest(
            self.least[Role.UNIFIED],
            lambda size: self.at({Role.UNIFIED: size}),
            lambda found: found.keeps(attained_fraction),
            Role.UNIFIED,
        )

    def at(self, replicas: Replicas) -> Prediction:
        check_sizes(replicas, self.least)
        size = replicas[Role.UNIFIED]
        figures = figures_at(self._group, self._inputs, replicas=size)
        values = values_of(figures)
        first = self._first_tokens(size, **values)
        full_tpot_s = values["full_step_s"] / self._engine.rates.tokens_a_step
        slow_tpot_s = max(values["tpot_s"], min(TPOT_MARGIN * values["tpot_s"], full_tpot_s))
        return predicted(self._demand, self._engine, replicas, figures, first=first, ttft=TTFT, slow_tpot_s=slow_tpot_s)

    def _first_tokens(
        self, size: int, slowness: float, decode_step_s: float, decoding: float, **_: float
    ) -> FirstTokens:
        """Each request's first token: its wait, the rest of a step, and its own prompt, a step at the least."""
        return FirstTokens(
            alone_s=self._prefill_s,
            waits_s=waits_at_servers(self._demand.arrivals_s, self._queued_s * slowness, size),
            shared_s=np.maximum(self._prefill_s * slowness, decode_step_s) - self._prefill_s,
            handoffs_s=np.zeros(1),
            steps_s=np.array([decode_step_s / 2]),
            front_s=np.array([self._engine.request_s + self._engine.token_s * (decoding + 1)]),
            come_before_kv=np.zeros(1),
        )

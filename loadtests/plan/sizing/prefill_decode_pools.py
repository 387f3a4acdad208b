"""What pools of prefill and of decode replicas come to under a demand."""

from pathlib import Path

import numpy as np

from engines.handoff import comes_from_prefill
from loadtests.plan.figures import read_figures
from loadtests.plan.sizing.demand import Demand
from loadtests.plan.sizing.engine import Engine, means_of
from loadtests.plan.sizing.first_tokens import FirstTokens
from loadtests.plan.sizing.prediction import (
    MOST_REPLICAS,
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

FILE = Path(__file__).with_name("prefill-decode.yaml")
TPOT_MARGIN = 1.3
"""Times per token at their 99th percentile, over the mean: no prompt stands between an answer's steps."""
DECODE_SIZES = 9
"""That are tried: with more decode replicas a first token is there a little earlier."""
TTFT = "wait + own prompt + front ends; + handoff + one and a half steps, where the decode draws it"


class PrefillDecodePools:
    """A demand on prefill and decode replicas, however many there are of each.

    As :class:`loadtests.plan.sizing.unified_pool.UnifiedPool`, but that prompts wait for prompts alone, and those who
    decode are disturbed by none.

    Args:
        demand: What is asked for.
        engine: Of every replica.

    Attributes:
        least: With fewer of a role its queue grows without end.
    """

    def __init__(self, demand: Demand, engine: Engine) -> None:
        self._demand, self._engine, rates = demand, engine, engine.rates
        (self._group,) = read_figures(FILE)
        prompts = demand.prompt_tokens
        self._prefill_s = np.array([rates.prefill_s(each, each) for each in prompts.tolist()])
        compute_s = np.array([rates.compute_s(each, each) for each in prompts.tolist()])
        self._queued_s = compute_s + prompts * rates.step_s / rates.step_tokens
        self._inputs = {
            **means_of(demand, engine),
            "prompt_s": float(self._queued_s.mean()),
            "handoff_fixed_s": rates.handoff_s,
            "handoff_token_s": rates.handoff_token_s,
        }
        loads = {Role.PREFILL: self._inputs["prompt_s"], Role.DECODE: self._inputs["answer_s"]}
        self.least = {role: int(demand.rate_per_s * each_s) + 1 for role, each_s in loads.items()}

    @property
    def inputs(self) -> dict[str, float]:
        return self._inputs

    def fewest(self, attained_fraction: float) -> Prediction:
        """Of some numbers of decode replicas, each with the fewest prefill replicas, the fewest in all."""
        tpot_slo_s = float(np.quantile(self._demand.tpot_slo_s, 1.0 - attained_fraction, method="lower"))

        def decodes_in_time(found: Prediction) -> bool:
            return found.fits and TPOT_MARGIN * values_of(found.figures)["tpot_s"] <= tpot_slo_s

        most, least = {Role.PREFILL: MOST_REPLICAS, Role.DECODE: MOST_REPLICAS}, self.least
        decode = smallest(
            least[Role.DECODE], lambda size: self.at({**most, Role.DECODE: size}), decodes_in_time, Role.DECODE
        ).replicas[Role.DECODE]
        sizes = range(decode, min(decode + DECODE_SIZES, MOST_REPLICAS + 1))
        possible = [each for each in sizes if self.at({**most, Role.DECODE: each}).keeps(attained_fraction)]
        found = [self._with_fewest_prefill(each, attained_fraction) for each in possible or sizes[-1:]]
        return min(found, key=lambda each: sum(each.replicas.values()))

    def _with_fewest_prefill(self, decode: int, attained_fraction: float) -> Prediction:
        return smallest(
            self.least[Role.PREFILL],
            lambda size: self.at({Role.PREFILL: size, Role.DECODE: decode}),
            lambda found: found.keeps(attained_fraction),
            Role.PREFILL,
        )

    def at(self, replicas: Replicas) -> Prediction:
        check_sizes(replicas, self.least)
        prefill, decode = replicas[Role.PREFILL], replicas[Role.DECODE]
        figures = figures_at(self._group, self._inputs, prefill_replicas=prefill, decode_replicas=decode)
        values = values_of(figures)
        first = self._first_tokens(prefill, **values)
        return predicted(
            self._demand,
            self._engine,
            replicas,
            figures,
            first=first,
            ttft=TTFT,
            slow_tpot_s=TPOT_MARGIN * values["tpot_s"],
        )

    def _first_tokens(self, prefill: int, decode_step_s: float, decoding: float, **_: float) -> FirstTokens:
        """Each request's first token: its wait and its prompt; its handoff, the rest of a decode step, and its own."""
        engine, rates, demand = self._engine, self._engine.rates, self._demand
        prompts = set(demand.prompt_tokens.tolist())
        drawn = {each: comes_from_prefill(each, engine.kv_block_tokens, is_resumable=True) for each in prompts}
        comes = np.array([drawn[each] for each in demand.prompt_tokens.tolist()]) & (demand.output_tokens > 1)
        waits_s = waits_at_servers(self._demand.arrivals_s, self._queued_s, prefill)
        handoffs_s = rates.handoff_s + self._demand.prompt_tokens.astype(np.float64) * rates.handoff_token_s
        front_s = 2 * engine.request_s + engine.token_s * (decoding + 1)
        return FirstTokens(
            alone_s=self._prefill_s,
            waits_s=waits_s,
            shared_s=np.zeros(1),
            handoffs_s=handoffs_s,
            steps_s=np.array([1.5 * decode_step_s]),
            front_s=np.array([front_s]),
            come_before_kv=comes.astype(np.float64),
        )

"""What pools of prefill and of decode replicas come to under a demand."""

from pathlib import Path

import numpy as np

from loadtests.plan.demand import Demand, Floats
from loadtests.plan.engine import Engine, means_of
from loadtests.plan.figures import read_figures
from loadtests.plan.prediction import (
    MOST_REPLICAS,
    Prediction,
    Replicas,
    figures_at,
    predicted,
    smallest,
    values_of,
)
from loadtests.plan.waits import waits_at_servers
from policies.errors import ConfigError
from policies.views import Role

FILE = Path(__file__).with_name("prefill-decode.yaml")
TTFT = "wait + own prompt + handoff + one and a half steps + front ends"


class PrefillDecodePools:
    """A demand on prefill and decode replicas, however many there are of each.

    As :class:`loadtests.plan.unified_pool.UnifiedPool`, but that prompts wait for prompts alone, and those who decode
    are disturbed by none.

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
        """As few decode replicas as decode within the SLOs, then as few prefill replicas as keep the others."""
        tpot_slo_s = float(np.quantile(self._demand.tpot_slo_s, 1.0 - attained_fraction))

        def decodes_in_time(found: Prediction) -> bool:
            return found.fits and values_of(found.figures)["tpot_s"] <= tpot_slo_s

        most = {Role.PREFILL: MOST_REPLICAS, Role.DECODE: MOST_REPLICAS}
        sizes = {role: range(each, MOST_REPLICAS + 1) for role, each in self.least.items()}
        decode = smallest(sizes[Role.DECODE], lambda size: self.at({**most, Role.DECODE: size}), decodes_in_time)
        enough = {Role.DECODE: decode.replicas[Role.DECODE]}
        return smallest(
            sizes[Role.PREFILL],
            lambda size: self.at({Role.PREFILL: size, **enough}),
            lambda found: found.keeps(attained_fraction),
        )

    def at(self, replicas: Replicas) -> Prediction:
        for role, least in self.least.items():
            if replicas[role] < least:
                raise ConfigError(f"{role} replicas", replicas[role], f"{least} or more: the work fills {least - 1}")
        prefill, decode = replicas[Role.PREFILL], replicas[Role.DECODE]
        figures = figures_at(self._group, self._inputs, prefill_replicas=prefill, decode_replicas=decode)
        ttft_s = self._ttft_s(prefill, **values_of(figures))
        return predicted(self._demand, self._engine, replicas, figures, ttft_s=ttft_s, ttft=TTFT)

    def _ttft_s(self, prefill: int, tpot_s: float, decoding: float, **_: float) -> Floats:
        """Each request's first token: its wait, its prompt, its handoff, the rest of a decode step, and its own."""
        engine, rates = self._engine, self._engine.rates
        waits_s = waits_at_servers(self._demand.arrivals_s, self._queued_s, prefill)
        handoffs_s = rates.handoff_s + self._demand.prompt_tokens.astype(np.float64) * rates.handoff_token_s
        front_s = 2 * engine.request_s + engine.token_s * (decoding + 1)
        ttft_s: Floats = waits_s + self._prefill_s + handoffs_s + 1.5 * tpot_s + front_s
        return ttft_s

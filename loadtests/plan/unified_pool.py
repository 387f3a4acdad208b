"""What a pool of unified replicas comes to under a demand: formulas for its steps, a recursion for its waits."""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtests.plan.demand import Demand, Floats
from loadtests.plan.figures import Figure, Group, WorkedFigure, read_figures, worked_out
from policies.errors import ConfigError
from routing.sizing.geometry import ServiceRates

FILE = Path(__file__).with_name("unified.yaml")
MOST_REPLICAS = 4096
QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One replica's engine.

    Args:
        rates: How fast it is.
        request_s: Its front end, for a request.
        token_s: The same for each sequence in a step.
        kv_capacity_tokens: KV tokens that it holds.
        max_num_seqs: Sequences in a step.
        dollars_per_h: What it costs.
        watts: What it draws.
    """

    rates: ServiceRates
    request_s: float
    token_s: float
    kv_capacity_tokens: int
    max_num_seqs: int
    dollars_per_h: float
    watts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A pool of some size under a demand.

    Args:
        replicas: How many.
        figures: What it comes to, with formulas.
        attained_fraction: Of the requests: first tokens and times per token within their SLOs.
        fits: Whether replicas hold the KV and the sequences of all who decode, in the mean.
    """

    replicas: int
    figures: Sequence[WorkedFigure]
    attained_fraction: float
    fits: bool


class UnifiedPool:
    """A demand on unified replicas, whatever their number.

    The time that steps take is that of a fluid: requests come at the demand's mean rate, and each step takes what any
    step takes and what its contents add. First tokens wait for the prompts before them: the G/G/c recursion of Kiefer
    and Wolfowitz over the demand's own arrivals, prompts at the pace that answers leave them.

    Args:
        demand: What is asked for.
        engine: Of every replica.

    Attributes:
        least_replicas: With fewer the queue grows without end.
    """

    def __init__(self, demand: Demand, engine: Engine) -> None:
        self._demand, self._engine, rates = demand, engine, engine.rates
        (self._group,) = read_figures(FILE)
        prompts, answers = demand.prompt_tokens, demand.output_tokens
        self._compute_s = np.array([rates.compute_s(each, each) for each in prompts.tolist()])
        self._prefill_s = np.array([rates.prefill_s(each, each) for each in prompts.tolist()])
        in_full_steps_s = prompts * rates.step_s / rates.step_tokens
        self._queued_s = self._compute_s + in_full_steps_s
        held_s = (prompts + answers / 2) * rates.context_token_s
        answer_s = answers * (rates.new_token_s + rates.sequence_s + held_s)
        self._inputs = {
            "rate_per_s": demand.rate_per_s,
            "prompt_tokens": float(prompts.mean()),
            "output_tokens": float(answers.mean()),
            "context_tokens": demand.context_tokens,
            "prompt_s": float(self._compute_s.mean()),
            "answer_s": float(answer_s.mean()),
            "step_s": rates.step_s,
            "step_tokens": float(rates.step_tokens),
            "new_token_s": rates.new_token_s,
            "sequence_s": rates.sequence_s,
            "context_token_s": rates.context_token_s,
            "kv_capacity_tokens": float(engine.kv_capacity_tokens),
            "dollars_per_h": engine.dollars_per_h,
            "watts": engine.watts,
        }
        load = demand.rate_per_s * (self._inputs["prompt_s"] + self._inputs["answer_s"])
        self.least_replicas = int(load) + 1

    @property
    def inputs(self) -> dict[str, float]:
        """The demand's means and the engine's terms, by the names that formulas have for them."""
        return dict(self._inputs)

    def fewest(self, attained_fraction: float) -> Prediction:
        """The smallest pool that is predicted to keep the SLOs of so large a part of the requests.

        Raises:
            ConfigError: None does: an SLO is shorter than a request takes alone.
        """

        def keeps(replicas: int) -> bool:
            found = self.at(replicas)
            return found.fits and found.attained_fraction >= attained_fraction

        if not keeps(MOST_REPLICAS):
            best = self.at(MOST_REPLICAS).attained_fraction
            allowed = (
                f"what requests can keep that are alone: with any number of replicas {best:.1%} are within their SLOs"
            )
            raise ConfigError("attained_fraction", attained_fraction, allowed)
        sizes = range(self.least_replicas, MOST_REPLICAS + 1)
        return self.at(sizes[bisect_left(sizes, True, key=keeps)])

    def at(self, replicas: int) -> Prediction:
        """A pool of so many.

        Raises:
            ConfigError: They are too few for the work.
        """
        if replicas < self.least_replicas:
            raise ConfigError("replicas", replicas, f"{self.least_replicas} or more: the work fills that many")
        group = Group(**{**self._group.model_dump(), "inputs": {**self._inputs, "replicas": float(replicas)}})
        figures = list(worked_out(group))
        values = {each.figure.name: each.value for each in figures}
        ttft_s = self._ttft_s(replicas, values)
        e2e_s = ttft_s + (self._demand.output_tokens - 1) * values["tpot_s"]
        demand, counts = self._demand, self._demand.counts
        within = (ttft_s <= demand.ttft_slo_s) & (values["tpot_s"] <= demand.tpot_slo_s)
        room = values["decoding"] <= self._engine.max_num_seqs and values["kv_residency"] <= 1.0
        return Prediction(
            replicas=replicas,
            figures=[*figures, *_quantiles("ttft", ttft_s[counts], TTFT), *_quantiles("e2e", e2e_s[counts], E2E)],
            attained_fraction=float(within[counts].mean()),
            fits=room,
        )

    def _ttft_s(self, replicas: int, values: dict[str, float]) -> Floats:
        """Each request's first token: its wait, the rest of a step, and its own prompt, a step at the least."""
        engine, slowness, tpot_s = self._engine, values["slowness"], values["tpot_s"]
        waits_s = waits_at_servers(self._demand.arrivals_s, self._queued_s * slowness, replicas)
        own_s = np.maximum(self._prefill_s * slowness, tpot_s) + tpot_s / 2
        return waits_s + own_s + engine.request_s + engine.token_s * (values["decoding"] + 1)


TTFT = "wait + half a step + max(own prompt * slowness, a step) + front end"
E2E = "ttft + (output_tokens - 1) * tpot_s"


def _quantiles(name: str, values_s: Floats, formula: str) -> list[WorkedFigure]:
    assumes = "Waits by recursion over the demand's own arrivals, one queue for all replicas, in order of arrival."
    return [
        WorkedFigure(
            figure=Figure(name=f"{name}_p{quantile * 100:g}_s", formula=formula, assumes=assumes),
            value=float(np.quantile(values_s, quantile)),
        )
        for quantile in QUANTILES
    ]


def waits_at_servers(arrivals_s: Floats, service_s: Floats, servers: int) -> Floats:
    """Waits in one queue before servers that are alike, in order of arrival.

    Each job goes to the server that is free first; O(n log c). Source: J. Kiefer and J. Wolfowitz, "On the Theory of
    Queues with Many Servers" (1955).

    Args:
        arrivals_s: When jobs come, in order.
        service_s: How long each takes.
        servers: How many, 1 or more.
    """
    free_s = [0.0] * servers
    waits_s = []
    for at_s, its_s in zip(arrivals_s.tolist(), service_s.tolist(), strict=True):
        begins_s = max(at_s, free_s[0])
        heapq.heapreplace(free_s, begins_s + its_s)
        waits_s.append(begins_s - at_s)
    return np.array(waits_s)

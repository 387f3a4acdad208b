"""What a workload asks for, as capacity plans take it: when, how long a prompt, how long an answer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.seeds import Seeds
from loadtests.scenario.scenario import Scenario
from policies.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests in order of time, an element each in every array.

    Args:
        arrivals_s: When they come.
        prompt_tokens: Lengths of their prompts, none of which is cached.
        output_tokens: Lengths of their answers.
        ttft_slo_s: Within which each one's first token is to come; infinite without such an SLO.
        tpot_slo_s: Likewise the time for a token after the first; infinite for answers of one token.
        e2e_slo_s: Likewise the last token.
        duration_s: For how long they come.
        warm_up_s: Those that come before do not count, but are before the others.
    """

    arrivals_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_slo_s: Floats
    tpot_slo_s: Floats
    e2e_slo_s: Floats
    duration_s: float
    warm_up_s: float

    @property
    def rate_per_s(self) -> float:
        """Requests a second, in the mean."""
        return len(self.arrivals_s) / self.duration_s

    @property
    def context_tokens(self) -> float:
        """KV tokens that one who decodes holds, in the mean over their tokens: its prompt and half of its answer."""
        held = self.prompt_tokens + self.output_tokens / 2
        return float((self.output_tokens * held).sum() / self.output_tokens.sum())

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Which requests come after the warm-up."""
        return self.arrivals_s >= self.warm_up_s


def demand_of(scenario: Scenario, seed: int) -> Demand:
    """What a scenario's users want.

    Args:
        scenario: Whose workload, SLOs and duration.
        seed: Of the workload's random streams.

    Raises:
        ConfigError: No request comes after the warm-up, or some hold conversations: what their later turns ask for
            depends on how the first ones went and on what caches hold.
    """
    planned = list(scenario.workload.build(scenario.duration_s).plan(Seeds(seed)))
    names = scenario.workload.class_names
    if talks := sorted({names[each.arrival.request.traffic_class] for each in planned if each.session is not None}):
        raise ConfigError("workload.classes", talks, "requests by themselves; conversations and agents only simulated")
    requests = [each.arrival.request for each in planned]
    if not requests or requests[-1].scheduled_s < scenario.warm_up_s:
        raise ConfigError("workload.classes", f"{len(requests)} requests", "one or more after warm_up_s")
    prompts = np.array([each.prompt_tokens for each in requests])
    classes = np.array([each.traffic_class for each in requests])
    slos = [scenario.slos[name] for name in names]
    least_s = np.array([each.ttft_s or (0.0 if each.ttft_s_per_1k_prompt_tokens else np.inf) for each in slos])
    per_1k_s = np.array([each.ttft_s_per_1k_prompt_tokens or 0.0 for each in slos])
    answers = np.array([each.output_tokens for each in requests])
    tpot_s = np.array([each.tpot_s or np.inf for each in slos])
    return Demand(
        arrivals_s=np.array([each.scheduled_s for each in requests]),
        prompt_tokens=prompts,
        output_tokens=answers,
        ttft_slo_s=np.maximum(least_s[classes], per_1k_s[classes] * prompts / 1000),
        tpot_slo_s=np.where(answers > 1, tpot_s[classes], np.inf),
        e2e_slo_s=np.array([each.e2e_s or np.inf for each in slos])[classes],
        duration_s=scenario.duration_s,
        warm_up_s=scenario.warm_up_s,
    )

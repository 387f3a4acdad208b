"""When first tokens come, by part, and what requests lose their time to."""

from typing import NamedTuple

import numpy as np

from loadtests.plan.sizing.demand import Demand, Floats
from loadtests.plan.sizing.engine import Engine
from policies.capacity.bounds import Bound


class FirstTokens(NamedTuple):
    """From requests to their first tokens, by part, an element for each request; the parts add up to the first token
    that a replica with the prompt's KV makes, which may be the second one.

    Args:
        alone_s: Their prompts, each on a replica that does nothing else.
        waits_s: Before the prompts.
        shared_s: What others add to the steps that the prompts are in.
        handoffs_s: Of their KV.
        steps_s: Decode steps until that token is out.
        front_s: The front ends' share.
        come_before_kv: 1: the first token comes with the prompt, before handoff and steps.
    """

    alone_s: Floats
    waits_s: Floats
    shared_s: Floats
    handoffs_s: Floats
    steps_s: Floats
    front_s: Floats
    come_before_kv: Floats

    @property
    def ttft_s(self) -> Floats:
        """To the first token."""
        return self._prompts_s + (1.0 - self.come_before_kv) * (self.handoffs_s + self.steps_s)

    def e2e_s(self, output_tokens: Floats, tpot_s: float) -> Floats:
        """To the last token of answers of some length."""
        steps = output_tokens - 1 - self.come_before_kv
        return self._prompts_s + self.handoffs_s + self.steps_s + steps * tpot_s

    @property
    def _prompts_s(self) -> Floats:
        return self.alone_s + self.waits_s + self.shared_s + self.front_s


def bound_seconds(demand: Demand, engine: Engine, first: FirstTokens, tpot_s: float) -> dict[Bound, float]:
    """What requests spend their time on, as gateways count it of a deployment's."""
    rates, counts = engine.rates, demand.counts
    context_tokens = demand.prompt_tokens + demand.output_tokens / 2
    alone_tpot_s = (rates.decode_step_s(1, 0) + rates.context_token_s * context_tokens) / rates.tokens_a_step
    tokens = demand.output_tokens - 1
    alone_s = first.alone_s + tokens * alone_tpot_s
    spent_s = {
        Bound.ENGINE: alone_s,
        Bound.QUEUE: first.waits_s,
        Bound.PREFILL: first.shared_s,
        Bound.MEMORY: first.steps_s - first.come_before_kv * tpot_s + np.maximum(0.0, tokens * (tpot_s - alone_tpot_s)),
        Bound.TRANSFER: first.handoffs_s,
        Bound.FRONT_END: first.front_s,
    }
    return {bound: float(np.broadcast_to(each_s, counts.shape)[counts].sum()) for bound, each_s in spent_s.items()}

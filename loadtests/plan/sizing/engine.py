"""What one replica's engine is like, as capacity plans take it."""

from dataclasses import dataclass

from loadtests.plan.sizing.demand import Demand
from routing.sizing.geometry import ServiceRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One replica's engine.

    Args:
        rates: How fast it is.
        request_s: Its front end, for a request.
        token_s: The same for each sequence in a step.
        kv_capacity_tokens: KV tokens that it holds.
        kv_block_tokens: Tokens in a KV block.
        max_num_seqs: Sequences in a step.
        dollars_per_h: What a replica costs.
        watts: What it draws.
    """

    rates: ServiceRates
    request_s: float
    token_s: float
    kv_capacity_tokens: int
    kv_block_tokens: int
    max_num_seqs: int
    dollars_per_h: float
    watts: float


def means_of(demand: Demand, engine: Engine) -> dict[str, float]:
    """What formulas know of a demand and an engine."""
    rates, answers = engine.rates, demand.output_tokens
    added_s = rates.added_s(0.0) + (demand.prompt_tokens + answers / 2) * rates.context_token_s
    return {
        "rate_per_s": demand.rate_per_s,
        "prompt_tokens": float(demand.prompt_tokens.mean()),
        "output_tokens": float(answers.mean()),
        "context_tokens": demand.context_tokens,
        "answer_s": float((answers * added_s).mean()) / rates.tokens_a_step,
        "step_s": rates.step_s,
        "draft_step_s": rates.draft_step_s,
        "tokens_a_step": rates.tokens_a_step,
        "verified_tokens": 1.0 + rates.draft_tokens,
        "step_tokens": float(rates.step_tokens),
        "new_token_s": rates.new_token_s,
        "sequence_s": rates.sequence_s + rates.draft_sequence_s - rates.draft_tokens * rates.new_token_s,
        "context_token_s": rates.context_token_s,
        "kv_capacity_tokens": float(engine.kv_capacity_tokens),
        "max_num_seqs": float(engine.max_num_seqs),
        "dollars_per_h": engine.dollars_per_h,
        "watts": engine.watts,
    }

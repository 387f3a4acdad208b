"""How long a step of an engine takes, as a sum of six terms.

    step time = a + b * new_tokens + c * attention_pairs + d * sequences + e * context_tokens + f * admitted

Draft tokens that are verified cost as much as new ones, and what proposes them in addition
(:mod:`engines.model.speculation`).
Where decoding sequences have a prefix in common, its KV is read from memory once and from the processor's cache again,
and ``context_tokens`` cost so much less.

Inside the step model time is a whole number of picoseconds. Sums of whole numbers do not depend on the order in which
they are added, so a thousand decode steps taken one by one and the same thousand taken at once end at the same
picosecond, and the two ways of running the model can be compared for equality rather than for closeness.
"""

from typing import Annotated, NamedTuple

import msgspec

PS_PER_S = 10**12
Seconds = Annotated[float, msgspec.Meta(ge=0)]


def to_ps(seconds: float) -> int:
    """Seconds as whole picoseconds."""
    return round(seconds * PS_PER_S)


def to_s(picoseconds: int) -> float:
    """Picoseconds as seconds."""
    return picoseconds / PS_PER_S


class StepWork(NamedTuple):
    """What one step computes.

    Args:
        new_tokens: Tokens that pass through the model, prompt tokens and decoded ones alike.
        attention_pairs: Pairs of a new prompt token and a token that it attends to, itself included.
        sequences: Sequences that take part.
        context_tokens: KV tokens that decoding sequences read, the new token included.
        admitted: Sequences that take part for the first time since they were taken in.
        shared_tokens: Of the context tokens, those that another sequence reads, too: all but the first reader's.
        draft_tokens: Tokens that pass through the model to be verified, beside the new ones.
        adapter_loads: Adapters that are loaded first.
    """

    new_tokens: int
    attention_pairs: int
    sequences: int
    context_tokens: int
    admitted: int = 0
    shared_tokens: int = 0
    draft_tokens: int = 0
    adapter_loads: int = 0


def attention_pairs(new_tokens: int, computed_tokens: int) -> int:
    """Pairs that ``new_tokens`` prompt tokens make when ``computed_tokens`` of the prompt precede them."""
    return new_tokens * computed_tokens + new_tokens * (new_tokens + 1) // 2


class StepCoefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The six coefficients, in seconds, as calibration finds them. None is negative.

    Args:
        step_s: ``a``, what every step costs.
        new_token_s: ``b``, for each token that passes through the model.
        attention_pair_s: ``c``, for each pair of tokens in prefill attention.
        sequence_s: ``d``, for each sequence in the step.
        context_token_s: ``e``, for each KV token that a decoding sequence reads.
        admission_s: ``f``, for each sequence that the step takes in: what a request costs the engine once, from its
            unpacking to the freeing of its blocks. It is charged to the first step, wherever it really falls.
        shared_token_saving_s: How much less than ``e`` a KV token costs each further sequence that reads it; not more.
    """

    step_s: Seconds
    new_token_s: Seconds
    attention_pair_s: Seconds
    sequence_s: Seconds
    context_token_s: Seconds
    admission_s: Seconds = 0.0
    shared_token_saving_s: Seconds = 0.0

    def __post_init__(self) -> None:
        if self.shared_token_saving_s > self.context_token_s:
            raise ValueError("shared_token_saving_s must not be more than context_token_s")

    def seconds(self, work: StepWork) -> float:
        """Duration of a step."""
        return (
            self.step_s
            + self.new_token_s * work.new_tokens
            + self.attention_pair_s * work.attention_pairs
            + self.sequence_s * work.sequences
            + self.context_token_s * work.context_tokens
            + self.admission_s * work.admitted
            - self.shared_token_saving_s * work.shared_tokens
        )

"""How long a step of an engine takes, as a sum of five terms, and a run of decode steps in closed form.

    step time = a + b * new_tokens + c * attention_pairs + d * sequences + e * context_tokens

Inside the step model time is a whole number of picoseconds. Sums of whole numbers do not depend on the order in which
they are added, so a thousand decode steps taken one by one and the same thousand taken at once end at the same
picosecond, and the two ways of running the model can be compared for equality rather than for closeness.
"""

import math
from dataclasses import dataclass
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
    """

    new_tokens: int
    attention_pairs: int
    sequences: int
    context_tokens: int


def attention_pairs(new_tokens: int, computed_tokens: int) -> int:
    """Pairs that ``new_tokens`` prompt tokens make when ``computed_tokens`` of the prompt precede them."""
    return new_tokens * computed_tokens + new_tokens * (new_tokens + 1) // 2


class StepCoefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The five coefficients, in seconds, as calibration finds them. None is negative.

    Args:
        step_s: ``a``, what every step costs.
        new_token_s: ``b``, for each token that passes through the model.
        attention_pair_s: ``c``, for each pair of tokens in prefill attention.
        sequence_s: ``d``, for each sequence in the step.
        context_token_s: ``e``, for each KV token that a decoding sequence reads.
    """

    step_s: Seconds
    new_token_s: Seconds
    attention_pair_s: Seconds
    sequence_s: Seconds
    context_token_s: Seconds

    def seconds(self, work: StepWork) -> float:
        """Duration of a step."""
        return (
            self.step_s
            + self.new_token_s * work.new_tokens
            + self.attention_pair_s * work.attention_pairs
            + self.sequence_s * work.sequences
            + self.context_token_s * work.context_tokens
        )


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The coefficients in picoseconds, times a slowdown, rounded once.

    Args:
        step: ``a``.
        new_token: ``b``.
        attention_pair: ``c``.
        sequence: ``d``.
        context_token: ``e``.
    """

    step: int
    new_token: int
    attention_pair: int
    sequence: int
    context_token: int

    @classmethod
    def of(cls, coefficients: StepCoefficients, slowdown: float = 1.0) -> "StepCosts":
        """The costs on an engine that is ``slowdown`` times as slow as the one that was measured."""
        return cls(
            step=max(1, to_ps(coefficients.step_s * slowdown)),  # time must pass, whatever the coefficients
            new_token=to_ps(coefficients.new_token_s * slowdown),
            attention_pair=to_ps(coefficients.attention_pair_s * slowdown),
            sequence=to_ps(coefficients.sequence_s * slowdown),
            context_token=to_ps(coefficients.context_token_s * slowdown),
        )

    def step_ps(self, work: StepWork) -> int:
        """Duration of one step."""
        new_tokens, pairs, sequences, context_tokens = work
        return (
            self.step
            + self.new_token * new_tokens
            + self.attention_pair * pairs
            + self.sequence * sequences
            + self.context_token * context_tokens
        )

    def run_ps(self, work: StepWork, num_steps: int) -> int:
        """Duration of ``num_steps`` decode steps, the first of which is ``work``.

        Every sequence reads one token more in each step, so durations grow by the same amount from step to step.
        """
        duration = num_steps * self.step_ps(work)
        if num_steps > 1:
            duration += self.context_token * work.sequences * (num_steps * (num_steps - 1) // 2)
        return duration

    def num_steps_until(self, work: StepWork, elapsed_ps: int) -> int:
        """The fewest decode steps, at least 1, that take at least ``elapsed_ps``; the first of them is ``work``."""
        first = self.step_ps(work)
        if elapsed_ps <= first:
            return 1
        growth = self.context_token * work.sequences
        linear = first - growth / 2
        guess = 2 * elapsed_ps / (linear + math.sqrt(linear * linear + 2 * growth * elapsed_ps))
        num_steps = max(1, int(guess))  # in floating point; the exact answer is a step or so away
        while num_steps * first + growth * (num_steps * (num_steps - 1) // 2) < elapsed_ps:
            num_steps += 1
        while num_steps > 1 and self.run_ps(work, num_steps - 1) >= elapsed_ps:
            num_steps -= 1
        return num_steps

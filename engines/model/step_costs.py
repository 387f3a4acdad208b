"""The cost model in whole picoseconds: a step, and a run of decode steps in closed form.

Separate from the coefficients because it is compiled and they are not (docs/adr/0007-compiled-simulator.md).
"""

import math
from dataclasses import dataclass

from engines.model.cost_model import StepCoefficients, StepWork, to_ps
from engines.model.speculation import NO_SPECULATION, Speculation


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The coefficients in picoseconds, times a slowdown, rounded once.

    Args:
        step: ``a``.
        new_token: ``b``.
        attention_pair: ``c``.
        sequence: ``d``.
        context_token: ``e``.
        admission: ``f``.
        shared_token_saving: Less for each token that has been read.
        draft_step: More for a step that verifies draft tokens.
        draft_token: For each of them.
        adapter_load: For each adapter that is loaded.
    """

    step: int
    new_token: int
    attention_pair: int
    sequence: int
    context_token: int
    admission: int = 0
    shared_token_saving: int = 0
    draft_step: int = 0
    draft_token: int = 0
    adapter_load: int = 0

    @classmethod
    def of(
        cls,
        coefficients: StepCoefficients,
        slowdown: float = 1.0,
        speculation: Speculation = NO_SPECULATION,
        adapter_load_s: float = 0.0,
    ) -> "StepCosts":
        """The costs on an engine that is ``slowdown`` times as slow as the one that was measured."""
        return cls(
            step=max(1, to_ps(coefficients.step_s * slowdown)),  # time must pass, whatever the coefficients
            new_token=to_ps(coefficients.new_token_s * slowdown),
            attention_pair=to_ps(coefficients.attention_pair_s * slowdown),
            sequence=to_ps(coefficients.sequence_s * slowdown),
            context_token=to_ps(coefficients.context_token_s * slowdown),
            admission=to_ps(coefficients.admission_s * slowdown),
            shared_token_saving=to_ps(coefficients.shared_token_saving_s * slowdown),
            draft_step=to_ps(speculation.step_s * slowdown),
            draft_token=to_ps((coefficients.new_token_s + speculation.drafts.token_s) * slowdown),
            adapter_load=to_ps(adapter_load_s * slowdown),
        )

    def step_ps(self, work: StepWork) -> int:
        """Duration of one step."""
        new_tokens, pairs, sequences, context_tokens, admitted, shared_tokens, draft_tokens, loads = work
        drafts = self.draft_step + self.draft_token * draft_tokens if draft_tokens else 0
        return (
            self.step
            + self.new_token * new_tokens
            + self.attention_pair * pairs
            + self.sequence * sequences
            + self.context_token * context_tokens
            + self.admission * admitted
            - self.shared_token_saving * shared_tokens
            + self.adapter_load * loads
            + drafts
        )

    def run_ps(self, work: StepWork, num_steps: int) -> int:
        """Duration of ``num_steps`` decode steps, the first of which is ``work``; several take nobody in.

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

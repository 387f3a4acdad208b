"""Speculative decoding: a draft proposes tokens cheaply, and a step of the model verifies them all at once.

A step with ``k`` draft tokens gives a sequence those that come before the first one that is rejected, and one of the
model's own. With ``a`` the chance that a draft token is accepted when those before it were, that is in the mean

    tokens a step = 1 + a + a^2 + ... + a^k = (1 - a^(k + 1)) / (1 - a)

(Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, equation 1).
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from engines.model.cost_model import Seconds


class Drafts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What proposes tokens to one model on one machine.

    Args:
        accepted_fraction: Of draft tokens, those that the model accepts, among those whose predecessors it accepted;
            0: nobody knows of any draft.
        step_s: What a draft token costs every step: a pass of the draft, whatever the batch.
        token_s: And for each sequence.
    """

    accepted_fraction: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    step_s: Seconds = 0.0
    token_s: Seconds = 0.0


NO_DRAFTS = Drafts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How an engine decodes.

    Args:
        num_speculative_tokens: Draft tokens of a sequence in a step; 0: none, and each step gives each sequence one.
        drafts: What they cost and how many are accepted.
    """

    num_speculative_tokens: int = 0
    drafts: Drafts = NO_DRAFTS

    @property
    def tokens_a_step(self) -> float:
        """That a decoding sequence gets, in the mean."""
        accepted = self.drafts.accepted_fraction
        return sum(accepted**position for position in range(self.num_speculative_tokens + 1))

    @property
    def step_s(self) -> float:
        """What drafts cost a step in which any sequence decodes."""
        return self.num_speculative_tokens * self.drafts.step_s

    def sequence_s(self, new_token_s: float) -> float:
        """What drafts and their verification add to a step for each sequence that decodes.

        Args:
            new_token_s: For each token that passes through the model.
        """
        return self.num_speculative_tokens * (new_token_s + self.drafts.token_s)


NO_SPECULATION = Speculation()

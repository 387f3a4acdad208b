"""How much work a request has been, and how much it would have had to be, in service-seconds of the engine profile."""

import msgspec

from policies.views import Role
from routing.geometry import ServiceRates


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Service-seconds that one answer needed; 0 where no profile says how fast engines are.

    Args:
        needed_s: Of its prompt, computed once without what was cached, and of its tokens.
        alone_s: How long that takes on a replica that does nothing else: decode steps are not shared.
    """

    needed_s: float = 0.0
    alone_s: float = 0.0


NO_WORK = Work()


class WorkMeter:
    """Turns tokens into service-seconds.

    Args:
        rates: How fast engines are, as their profile says.
    """

    def __init__(self, rates: ServiceRates) -> None:
        self._rates = rates

    def attempt_s(self, stage: Role, prompt_tokens: int, prefill_tokens: int, output_tokens: int) -> float:
        """An attempt's work. Its prompt counts in full, whether or not it was stopped in the middle of it.

        Args:
            stage: What was to be run.
            prompt_tokens: Length of the prompt.
            prefill_tokens: What of it was expected to be computed there.
            output_tokens: Tokens that came of it.
        """
        if not self._rates.are_known:
            return 0.0
        length_tokens = max(prompt_tokens, prefill_tokens)  # an answer that is gone on with is part of the prompt
        prefill_s = 0.0 if stage is Role.DECODE else self._rates.prefill_s(length_tokens, prefill_tokens)
        decode_s = 0.0 if stage is Role.PREFILL else self._rates.decode_s(prompt_tokens, output_tokens)
        return prefill_s + decode_s

    def answer(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Work:
        """What an answer needed.

        Args:
            prompt_tokens: Length of its prompt.
            cached_tokens: Those that were cached where its first token came from.
            output_tokens: Its tokens; without any, it needed nothing.
        """
        rates = self._rates
        if not rates.are_known or not output_tokens:
            return NO_WORK
        prefill_s = rates.prefill_s(prompt_tokens, prompt_tokens - cached_tokens)
        context_tokens = prompt_tokens + output_tokens // 2
        return Work(
            needed_s=prefill_s + rates.decode_s(prompt_tokens, output_tokens),
            alone_s=prefill_s + (output_tokens - 1) * rates.decode_step_s(1, context_tokens),
        )

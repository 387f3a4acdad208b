"""How much work a request has been, and how much it would have had to be, in service-seconds of the engine profile."""

import msgspec

from cluster.bound_seconds import AloneTimes, alone_times
from policies.views import Role
from routing.sizing.geometry import ServiceRates


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Service-seconds that one answer needed; 0 where no profile says how fast engines are.

    Args:
        needed_s: Of its prompt, computed once without what was cached, and of its tokens.
        alone_s: How long that takes on a replica that does nothing else: decode steps are not shared.
    """

    needed_s: float = 0.0
    alone_s: float = 0.0


NO_WORK = Work()


class AttemptWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one attempt gave its replica to do.

    Args:
        stage: What was to be run.
        prompt_tokens: Length of its prompt; an answer that it goes on with is part of that.
        computed_tokens: Prompt tokens that were computed there.
        output_tokens: Tokens that came of it.
    """

    stage: Role
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int


class WorkMeter:
    """Turns tokens into service-seconds.

    Args:
        rates: How fast engines are, as their profile says.
    """

    def __init__(self, rates: ServiceRates) -> None:
        self._rates = rates

    def attempt_s(self, attempt: AttemptWork) -> float:
        """An attempt's work. Its prompt counts whether or not it was stopped in the middle of it."""
        rates = self._rates
        if not rates.are_known:
            return 0.0
        stage, prompt_tokens = attempt.stage, attempt.prompt_tokens
        prefill_s = 0.0 if stage is Role.DECODE else rates.prefill_s(prompt_tokens, attempt.computed_tokens)
        decode_s = 0.0 if stage is Role.PREFILL else rates.decode_s(prompt_tokens, attempt.output_tokens)
        return prefill_s + decode_s

    def answer(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Work:
        """What an answer needed.

        Args:
            prompt_tokens: Length of its prompt.
            cached_tokens: Those that were cached where its first token came from.
            output_tokens: Its tokens; without any, it needed nothing.
        """
        if not self._rates.are_known or not output_tokens:
            return NO_WORK
        alone = self.alone(prompt_tokens, cached_tokens, output_tokens)
        return Work(
            needed_s=alone.prefill_s + self._rates.decode_s(prompt_tokens, output_tokens),
            alone_s=alone.prefill_s + alone.decode_s,
        )

    def alone(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> AloneTimes:
        """What an answer takes on replicas that do nothing else; arguments as of :meth:`answer`."""
        return alone_times(self._rates, prompt_tokens, cached_tokens, output_tokens)

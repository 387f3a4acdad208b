"""How long a request's first token would take at a replica: the one place where that is estimated."""

from collections.abc import Sequence
from itertools import pairwise

from policies.estimators import FadingLine
from policies.views import PrefixView, ReplicaView, RequestView, Role
from routing.request.request import Attempt
from routing.sizing.geometry import ServiceRates

MEMORY_S = 10.0
PRIOR = 1.0
"""Seconds squared by which first tokens must have differed before the profile is believed less than they are."""
MOST_SEEN = 64
"""First tokens that count."""


class FirstTokenEstimator:
    """A :class:`policies.views.FirstTokenView`: prompts before it and the request's own, at the pace of the replica.

    A step has room for ``B = step_tokens``, of which those that decode take one each, and their draft tokens beside it
    where engines speculate; what is left computes prompts.
    Beside its prompts a step takes the time of its decodes:

        step = step_s + B * new_token_s
        slowness = (step + n * sequence_s + kv_tokens * context_token_s) / step * B / (B - n)

    with ``n`` open attempts and the KV tokens that they hold. Waits are service-seconds times that. A line through what
    first tokens should have taken of late and what they took corrects it: its slope is not 1 where an engine is not as
    its profile says, and its intercept is what every request takes beside. Where nobody is, nothing holds a request up:
    on an idle replica the intercept does not count, or a stall would keep everybody out long after it. An adapter that
    is not loaded takes ``adapter_load_s`` more, and where all slots are taken the answer of another request, which is
    taken to be as long as its own.

    Args:
        rates: How fast engines are; all times are 0 where nobody has said that.
        prefixes: What replicas have of a prompt.
    """

    def __init__(self, rates: ServiceRates, prefixes: PrefixView) -> None:
        self.rates = rates
        self.prefixes = prefixes
        self._step_s = rates.step_s + rates.step_tokens * rates.new_token_s
        self._beside_s = rates.sequence_s + rates.draft_sequence_s - rates.draft_tokens * rates.new_token_s
        self._seen = FadingLine(MEMORY_S, PRIOR, MOST_SEEN)

    def by_profile_s(self, attempt: Attempt, prompt_tokens: int, replica: ReplicaView) -> float:
        """What the profile alone expects of an attempt that a replica has: other prompts there, and its own part."""
        before_s = self.rates.queue_s(max(0, replica.prefill_tokens - attempt.prefill_tokens))
        slowness = self._slowness(replica.num_ongoing_requests - 1, max(0, replica.kv_tokens - attempt.kv_tokens))
        own_s = self.rates.prefill_s(prompt_tokens, attempt.prefill_tokens - attempt.load_tokens)
        load_s = 0.0 if attempt.has_adapter else self.rates.adapter_load_s
        return (before_s + own_s) * slowness + load_s

    def corrected_s(self, by_profile_s: float) -> float:
        """The same by what has been seen of late."""
        return self._seen.intercept + self._seen.slope * by_profile_s

    def learn(self, by_profile_s: float, took_s: float, now_s: float) -> None:
        """An attempt has given its first token."""
        self._seen.add(by_profile_s, took_s, now_s)

    def ahead_s(self, replica: ReplicaView) -> float:
        return self.prompts_s(replica, replica.prefill_tokens + replica.waiting_tokens)

    def prompts_s(self, replica: ReplicaView, tokens: int) -> float:
        """So many prompt tokens, computed by a replica one after the other; their attention is left out."""
        if not tokens:
            return 0.0
        slowness = self._slowness(replica.num_ongoing_requests, replica.kv_tokens)
        return self.rates.queue_s(tokens) * slowness * self._seen.slope

    def level_s(self, live: Sequence[ReplicaView], ahead_s: Sequence[float], anywhere_tokens: int) -> float:
        if not anywhere_tokens:
            return 0.0
        levels_s = sorted(ahead_s)
        slowness = sum(self._slowness(each.num_ongoing_requests, each.kv_tokens) for each in live) / len(live)
        left_s = self.rates.queue_s(anywhere_tokens) * slowness * self._seen.slope
        for filled, (level_s, next_s) in enumerate(pairwise(levels_s), 1):
            if left_s <= (next_s - level_s) * filled:
                return level_s + left_s / filled
            left_s -= (next_s - level_s) * filled
        return levels_s[-1] + left_s / len(levels_s)

    def own_s(self, request: RequestView, replica: ReplicaView) -> float:
        uncached_tokens = self.uncached_tokens(request, replica.replica_id)
        own_s = self.rates.prefill_s(request.prompt_tokens, uncached_tokens)
        beside_s = self._adapter_s(request, replica) if request.adapter else 0.0
        if replica.role is Role.DECODE:
            beside_s += self.rates.transfer_s(uncached_tokens, request.kv_place, replica.place)
        if not replica.num_ongoing_requests:
            return own_s * self._seen.slope + beside_s
        return self.corrected_s(own_s * self._slowness(replica.num_ongoing_requests, replica.kv_tokens)) + beside_s

    def _adapter_s(self, request: RequestView, replica: ReplicaView) -> float:
        """Until the request's adapter is there."""
        wait_s = 0.0 if replica.has_slot_for(request.adapter) else self.answer_s(request, replica)
        return wait_s + self.load_s(request, replica)

    def load_s(self, request: RequestView, replica: ReplicaView) -> float:
        return 0.0 if replica.has_loaded(request.adapter) else self.rates.adapter_load_s

    def answer_s(self, request: RequestView, replica: ReplicaView) -> float:
        if replica.role is Role.PREFILL or not self.rates.are_known:
            return 0.0
        kv_tokens = replica.kv_tokens + request.kv_tokens
        return request.geometry.output_tokens * self.rates.token_s(replica.num_ongoing_requests + 1, kv_tokens)

    def answer_of_s(self, replica: ReplicaView, prompt_tokens: int, output_tokens: int) -> float:
        """A whole request that no engine has anything of, beside what the replica has; for known rates."""
        slowness = self._slowness(replica.num_ongoing_requests, replica.kv_tokens)
        first_s = self.corrected_s(self.rates.prefill_s(prompt_tokens, prompt_tokens) * slowness)
        kv_tokens = replica.kv_tokens + prompt_tokens + output_tokens
        token_s = max(1.0, self._seen.slope) * self.rates.token_s(replica.num_ongoing_requests + 1, kv_tokens)
        return self.prompts_s(replica, replica.prefill_tokens) + first_s + (output_tokens - 1) * token_s

    def uncached_tokens(self, request: RequestView, replica_id: str) -> int:
        """Prompt tokens that a replica would have to compute: the last one always."""
        if not request.prefix_blocks:
            return request.prompt_tokens
        return max(1, request.prompt_tokens - self.prefixes.cached_tokens(request).get(replica_id, 0))

    def _slowness(self, num_open: int, kv_tokens: int) -> float:
        """How much longer a step takes, and how many more it takes, than on a replica that decodes nothing."""
        rates = self.rates
        if not num_open or not rates.are_known:
            return 1.0
        decodes_s = num_open * self._beside_s + kv_tokens * rates.context_token_s + rates.draft_step_s
        fewer_tokens = rates.step_tokens / max(1, rates.step_tokens - num_open * (1 + rates.draft_tokens))
        return (1.0 + decodes_s / self._step_s) * fewer_tokens

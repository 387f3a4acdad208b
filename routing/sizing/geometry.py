"""Tier 1: what a request will cost, from its prompt, what caches hold of it, and how long its answer may be."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from policies.views import Geometry, PrefixView, RequestView, level_in_common
from routing.sizing.length_prediction import LengthPredictor
from routing.sizing.prompt_ngrams import NgramParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRates:
    """How fast an engine is, as its profile says: what turns tokens into service-seconds.

    Args:
        step_s: What every step takes.
        new_token_s: For each token that passes through the model.
        attention_pair_s: For each pair of a new prompt token and a token that it attends to.
        sequence_s: For each sequence in a step.
        context_token_s: For each KV token that a decoding sequence reads.
        admission_s: What a request costs its engine once.
        step_tokens: Tokens in a step: a longer prompt takes several.
        decode_batch: Sequences that share a decode step on a busy replica.
        handoff_s: What a KV handoff takes beside its tokens.
        handoff_token_s: For each KV token that is handed off.
        tokens_a_step: Tokens that a step gives a decoding sequence in the mean: one, and those of its draft that are
            accepted.
        draft_tokens: Tokens of a decoding sequence that a step verifies beside its own.
        draft_step_s: What drafts cost a step in which any sequence decodes.
        draft_sequence_s: What they and their verification add for each that does.
        adapter_load_s: What loading a LoRA adapter takes, in which nothing else is computed.
        links: Seconds for each KV token between replicas that have the same place at a level, level by level, the
            nearest first; ``handoff_token_s`` where they have none in common.
    """

    step_s: float = 0.0
    new_token_s: float = 0.0
    attention_pair_s: float = 0.0
    sequence_s: float = 0.0
    context_token_s: float = 0.0
    admission_s: float = 0.0
    step_tokens: int = 2048
    decode_batch: int = 32
    handoff_s: float = 0.0
    handoff_token_s: float = 0.0
    tokens_a_step: float = 1.0
    draft_tokens: int = 0
    draft_step_s: float = 0.0
    draft_sequence_s: float = 0.0
    adapter_load_s: float = 0.0
    links: tuple[float, ...] = ()

    def longest_step_s(self, context_tokens: int) -> float:
        """A step full of prompt tokens at the end of the longest context, after an adapter was loaded."""
        tokens_s = self.step_tokens * (self.new_token_s + context_tokens * self.attention_pair_s)
        return self.step_s + tokens_s + self.adapter_load_s

    def times(self, factor: float) -> "ServiceRates":
        """The rates of engines that take ``factor`` times as long for everything."""
        seconds = {each.name: getattr(self, each.name) * factor for each in fields(self) if each.name.endswith("_s")}
        return replace(self, **seconds, links=tuple(token_s * factor for token_s in self.links))

    @property
    def are_known(self) -> bool:
        """Whether anybody has said how fast the engine is."""
        return self.step_s + self.new_token_s > 0.0

    @property
    def load_tokens(self) -> int:
        """Prompt tokens that could be computed while an adapter is loaded."""
        return round(self.adapter_load_s / self.queue_s(1)) if self.are_known else 0

    @property
    def token_step_s(self) -> float:
        """What a decode step takes anyway, for each token that a sequence gets of it."""
        return (self.step_s + self.draft_step_s) / self.tokens_a_step

    def transfer_s(self, tokens: int, place: Sequence[str], other: Sequence[str]) -> float:
        """KV on its way from one place to another; 0 where no links are told of."""
        if not self.links:
            return 0.0
        level = level_in_common(place, other)
        return self.handoff_s + tokens * (self.handoff_token_s if level is None else self.links[level])

    def prefill_s(self, prompt_tokens: int, uncached_tokens: int) -> float:
        """Service-seconds of the last ``uncached_tokens`` of a prompt, by themselves, with its admission."""
        num_steps = math.ceil(uncached_tokens / self.step_tokens)
        steps_s = num_steps * (self.step_s + self.sequence_s)
        return self.admission_s + steps_s + self.compute_s(prompt_tokens, uncached_tokens)

    def compute_s(self, prompt_tokens: int, uncached_tokens: int) -> float:
        """The same without what its steps take anyway: how much longer they take for those who share them."""
        cached_tokens = prompt_tokens - uncached_tokens
        pairs = uncached_tokens * cached_tokens + uncached_tokens * (uncached_tokens + 1) // 2
        return uncached_tokens * self.new_token_s + pairs * self.attention_pair_s

    def decode_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Service-seconds of an answer: its share of the steps, and what its own context adds to them."""
        return output_tokens * self.token_step_s / self.decode_batch + self.answer_s(prompt_tokens, output_tokens)

    def answer_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """What an answer adds to the steps that it is in."""
        mean_context_tokens = prompt_tokens + output_tokens / 2
        return output_tokens * self.added_s(mean_context_tokens) / self.tokens_a_step

    def queue_s(self, prompt_tokens: int) -> float:
        """Service-seconds of prompts that wait together, in full steps; their attention is left out."""
        return prompt_tokens * (self.new_token_s + self.step_s / self.step_tokens)

    def queued_tokens(self, work_s: float) -> int:
        """Of prompts that wait together and take so many service-seconds; none where rates are not known."""
        token_s = self.queue_s(1)
        return int(work_s / token_s) if token_s else 0

    def decode_step_s(self, num_sequences: int, kv_tokens: int) -> float:
        """One decode step of so many sequences that have so many KV tokens in all."""
        return self.step_s + self.draft_step_s + num_sequences * self.added_s(0.0) + kv_tokens * self.context_token_s

    def token_s(self, num_sequences: int, kv_tokens: int) -> float:
        """Time per token of sequences that decode so."""
        return self.decode_step_s(num_sequences, kv_tokens) / self.tokens_a_step

    def added_s(self, context_tokens: float) -> float:
        """What a sequence with such a context adds to a decode step."""
        return self.new_token_s + self.sequence_s + self.draft_sequence_s + self.context_token_s * context_tokens


class GeometryEstimator:
    """Puts the parts together.

    Args:
        predictor: How long the answer will be.
        prefixes: What replicas are thought to have in their caches.
        rates: How fast the engines are.
    """

    def __init__(self, predictor: LengthPredictor, prefixes: PrefixView, rates: ServiceRates) -> None:
        self._predictor = predictor
        self._prefixes = prefixes
        self.rates = rates

    @property
    def wants_ngrams(self) -> NgramParams | None:
        """What the predictor wants to see of a prompt's words."""
        return self._predictor.wants_ngrams

    def gauges(self) -> Mapping[str, float]:
        """What the predictor says of itself, for metrics."""
        gauges: Callable[[], Mapping[str, float]] = getattr(self._predictor, "gauges", dict)
        return gauges()

    def estimate(self, request: RequestView) -> Geometry:
        """The geometry of a request that has just arrived."""
        output = self._predictor.predict(request)
        uncached_tokens = self._uncached_tokens(request)
        return Geometry(
            uncached_tokens=uncached_tokens,
            output_tokens=output.tokens,
            output_tokens_high=output.high_tokens,
            prefill_s=self.rates.prefill_s(request.prompt_tokens, uncached_tokens),
            decode_s=self.rates.decode_s(request.prompt_tokens, output.tokens),
        )

    def rest_of(self, request: RequestView, output_tokens: int) -> Geometry:
        """The geometry of what is left of a request whose prompt ends with ``output_tokens`` of its answer."""
        known = request.geometry
        expected, high = (
            min(request.max_output_tokens, max(1, tokens - output_tokens))
            for tokens in (known.output_tokens, known.output_tokens_high)
        )
        uncached_tokens = self._uncached_tokens(request)
        return Geometry(
            uncached_tokens=uncached_tokens,
            output_tokens=expected,
            output_tokens_high=high,
            prefill_s=self.rates.prefill_s(request.prompt_tokens, uncached_tokens),
            decode_s=self.rates.decode_s(request.prompt_tokens, expected),
        )

    def observe(self, request: RequestView, output_tokens: int) -> None:
        """A request has been answered: the predictor may learn from it."""
        self._predictor.observe(request, output_tokens)

    def _uncached_tokens(self, request: RequestView) -> int:
        if not request.prefix_blocks:
            return request.prompt_tokens
        cached_tokens = max(self._prefixes.cached_tokens(request).values(), default=0)
        return max(1, request.prompt_tokens - cached_tokens)

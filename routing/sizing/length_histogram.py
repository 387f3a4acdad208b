"""How long answers were lately, for requests of about this size and of this tenant."""

from collections import OrderedDict

from policies.errors import ConfigError
from policies.views import RequestView
from routing.sizing.length_counts import LengthCounts
from routing.sizing.length_prediction import FIELD, OutputEstimate, require_quantile
from routing.sizing.prompt_ngrams import NgramParams


class Log2Histogram:
    """How many tokens will this request generate? As many as requests like it did lately.

    Rule: answers are counted in buckets, two for each doubling of the length, and apart for each pair of tenant and
    prompt bucket (the bit length of the prompt's token count). Where a pair has few samples the prompt bucket's
    counts answer, then everybody's, then ``max_output_tokens``. An answer that reached its ``max_output_tokens`` says
    that the length is at least that; survival from bucket to bucket is therefore estimated among the answers that could
    have gone on (Kaplan and Meier, on bins). ``tokens`` is the mean of ``min(length, max_output_tokens)`` under it,
    ``high_tokens`` a quantile; within a bucket lengths are taken to be uniform.

    State: one histogram in all, one for each prompt bucket, and at most ``max_keys`` for pairs, of which the one that
    went longest without an answer is dropped. Each answer makes those before it in the same histogram weigh less.

    Complexity: a few microseconds, in proportion to the doublings up to ``max_output_tokens``.

    Failure mode: it can't tell two requests of one size and one tenant apart, so the more kinds of work a tenant mixes,
    the wider the estimate. After a change it takes about ``half_life_requests`` answers of a pair to follow. Short
    answers finish first: just after a start, and while load grows, it has seen too few of the long ones. Requests that
    were cancelled teach it nothing. Whoever invents tenants pushes others' pairs out, which then share what the prompt
    bucket knows.

    Source: the two-dimensional log2 histogram of AIBrix's output predictor (vllm-project/aibrix,
    ``pkg/cache/output_predictor.go``), which draws from it at random; this takes mean and quantile. Kaplan, Meier,
    "Nonparametric Estimation from Incomplete Observations", JASA 53, 1958.

    Args:
        quantile: Of ``high_tokens``, 0.5 or more.
        half_life_requests: After so many further answers in the same histogram, one counts half.
        min_samples: A histogram that has, by weight, seen fewer answers leaves the estimate to the next coarser one.
        max_keys: Most pairs of tenant and prompt bucket.
        ngrams: How the host is to hash prompts, although nothing here looks at them: they get into the event log, and a
            :class:`routing.sizing.quantile_model.QuantileModel` can be trained from it. ``None``: not at all.

    Raises:
        ConfigError: A number is out of its range.
    """

    def __init__(
        self,
        *,
        quantile: float = 0.9,
        half_life_requests: float = 200.0,
        min_samples: float = 30.0,
        max_keys: int = 4096,
        ngrams: dict[str, int] | None = None,
    ) -> None:
        require_quantile(quantile)
        if not 1.0 <= half_life_requests <= 1e9:
            raise ConfigError(f"{FIELD}.params.half_life_requests", half_life_requests, "1 to 1e9")
        if not 1.0 <= min_samples <= half_life_requests:
            raise ConfigError(
                f"{FIELD}.params.min_samples", min_samples, f"1 to half_life_requests={half_life_requests}"
            )
        if max_keys < 1:
            raise ConfigError(f"{FIELD}.params.max_keys", max_keys, "1 or more")
        self.wants_ngrams = None if ngrams is None else NgramParams(**ngrams)
        self._quantile = quantile
        self._min_samples = min_samples
        self._max_keys = max_keys
        self._growth = 2.0 ** (1.0 / half_life_requests)
        self._everything = LengthCounts()
        self._by_prompt: dict[int, LengthCounts] = {}
        self._by_pair: OrderedDict[tuple[str, int], LengthCounts] = OrderedDict()

    def predict(self, request: RequestView) -> OutputEstimate:
        lengths = self._lengths_for(request)
        most = request.max_output_tokens
        if lengths is None:
            return OutputEstimate(most, most)
        mean, high = lengths.mean_and_quantile(most, self._quantile)
        tokens = max(1, round(mean))
        return OutputEstimate(tokens, max(tokens, high))

    def observe(self, request: RequestView, output_tokens: int) -> None:
        length = max(1, output_tokens)
        was_truncated = length >= request.max_output_tokens
        for lengths in (self._everything, self._of_prompt(request), self._of_pair(request)):
            lengths.add(length, was_truncated, self._growth)

    def quantile_tokens(self, request: RequestView, level: float) -> int:
        """Any quantile, at least 1 and at most ``max_output_tokens``."""
        lengths = self._lengths_for(request)
        most = request.max_output_tokens
        return most if lengths is None else lengths.mean_and_quantile(most, level)[1]

    @property
    def num_keys(self) -> int:
        """Pairs of tenant and prompt bucket that it remembers."""
        return len(self._by_pair)

    def _lengths_for(self, request: RequestView) -> LengthCounts | None:
        """The finest histogram that has seen enough."""
        prompt_bucket = request.prompt_tokens.bit_length()
        for lengths in (
            self._by_pair.get((request.tenant, prompt_bucket)),
            self._by_prompt.get(prompt_bucket),
            self._everything,
        ):
            if lengths is not None and lengths.num_samples >= self._min_samples:
                return lengths
        return None

    def _of_prompt(self, request: RequestView) -> LengthCounts:
        prompt_bucket = request.prompt_tokens.bit_length()
        found = self._by_prompt.get(prompt_bucket)
        if found is None:
            found = self._by_prompt[prompt_bucket] = LengthCounts()
        return found

    def _of_pair(self, request: RequestView) -> LengthCounts:
        pair = (request.tenant, request.prompt_tokens.bit_length())
        found = self._by_pair.get(pair)
        if found is not None:
            self._by_pair.move_to_end(pair)
            return found
        found = self._by_pair[pair] = LengthCounts()
        if len(self._by_pair) > self._max_keys:
            self._by_pair.popitem(last=False)
        return found

"""How long answers were lately, for requests of about this size and of this tenant."""

from collections import OrderedDict
from itertools import pairwise
from math import ceil

from policies.errors import ConfigError
from policies.views import RequestView
from routing.sizing.length_prediction import FIELD, OutputEstimate, require_quantile
from routing.sizing.prompt_ngrams import NgramParams

_OCTAVES = 32
_EDGES = (1, *(edge << octave >> 1 for octave in range(1, _OCTAVES) for edge in (2, 3)), 1 << _OCTAVES)
_BUCKETS = tuple((low, high - low) for low, high in pairwise(_EDGES))
"""Lowest length and number of lengths of each bucket; longer answers than there can be share the last one."""

_RESCALE_AT = 1e100
_NEGLIGIBLE = 1e-9
_HALVING_EACH_OCTAVE = 0.5**0.5


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
        self._everything = _Lengths()
        self._by_prompt: dict[int, _Lengths] = {}
        self._by_pair: OrderedDict[tuple[str, int], _Lengths] = OrderedDict()

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

    def _lengths_for(self, request: RequestView) -> "_Lengths | None":
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

    def _of_prompt(self, request: RequestView) -> "_Lengths":
        prompt_bucket = request.prompt_tokens.bit_length()
        found = self._by_prompt.get(prompt_bucket)
        if found is None:
            found = self._by_prompt[prompt_bucket] = _Lengths()
        return found

    def _of_pair(self, request: RequestView) -> "_Lengths":
        pair = (request.tenant, request.prompt_tokens.bit_length())
        found = self._by_pair.get(pair)
        if found is not None:
            self._by_pair.move_to_end(pair)
            return found
        found = self._by_pair[pair] = _Lengths()
        if len(self._by_pair) > self._max_keys:
            self._by_pair.popitem(last=False)
        return found


def _bucket_of(length: int) -> int:
    """Index of the bucket that a length is in: twice the octave, and which half of it."""
    octave = length.bit_length() - 1
    if octave == 0:
        return 0
    return min(2 * octave - 1 + (length >> (octave - 1) & 1), len(_BUCKETS) - 1)


class _Lengths:
    """One histogram. Rather than every old answer less, each new one weighs more."""

    __slots__ = ("_finished", "_first", "_total", "_truncated", "_weight")

    def __init__(self) -> None:
        self._finished = [0.0] * len(_BUCKETS)
        self._truncated = [0.0] * len(_BUCKETS)
        self._first = len(_BUCKETS)
        self._total = 0.0
        self._weight = 1.0

    @property
    def num_samples(self) -> float:
        """Answers by weight: all of them at first, and never more than half-life / ln 2."""
        return self._total / self._weight

    def add(self, length: int, was_truncated: bool, growth: float) -> None:
        bucket = _bucket_of(length)
        self._first = min(self._first, bucket)
        self._weight *= growth
        self._total += self._weight
        (self._truncated if was_truncated else self._finished)[bucket] += self._weight
        if self._weight > _RESCALE_AT:
            scale = 1.0 / self._weight
            self._finished = [each * scale for each in self._finished]
            self._truncated = [each * scale for each in self._truncated]
            self._total *= scale
            self._weight = 1.0

    def mean_and_quantile(self, most: int, level: float) -> tuple[float, int]:
        """Of ``min(length, most)``.

        The mean is the sum over ``n`` of how likely an answer is to have at least ``n`` tokens, which falls linearly
        within a bucket; the quantile is where that falls to ``1 - level``.
        """
        survival, quantile, tail = 1.0, 0, 1.0 - level
        at_risk, too_few = self._total, self._total * _NEGLIGIBLE
        mean = float(min(_BUCKETS[self._first][0] - 1, most))
        for bucket in range(self._first, len(_BUCKETS)):
            low, width = _BUCKETS[bucket]
            if low > most or survival < _NEGLIGIBLE:
                break
            finished, truncated = self._finished[bucket], self._truncated[bucket]
            if at_risk > too_few:
                after = survival * max(0.0, 1.0 - finished / (at_risk - 0.5 * truncated))
                at_risk -= finished + truncated
            else:  # nobody got this far without being truncated
                after = survival * _HALVING_EACH_OCTAVE
            slope = (survival - after) / width
            if not quantile and after <= tail:
                quantile = ceil(low + (survival - tail) / slope) - 1
            num_lengths = min(width, most + 1 - low)
            mean += num_lengths * (survival - 0.5 * slope * (num_lengths - 1))
            survival = after
        return mean, max(1, min(quantile or most, most))

"""Answers counted by their lengths, with those that were truncated told apart."""

from itertools import pairwise
from math import ceil

_OCTAVES = 32
_EDGES = (1, *(edge << octave >> 1 for octave in range(1, _OCTAVES) for edge in (2, 3)), 1 << _OCTAVES)
_BUCKETS = tuple((low, high - low) for low, high in pairwise(_EDGES))
"""Lowest length and number of lengths of each bucket; longer answers than there can be share the last one."""

_RESCALE_AT = 1e100
_NEGLIGIBLE = 1e-9
_HALVING_EACH_OCTAVE = 0.5**0.5


def _bucket_of(length: int) -> int:
    """Index of the bucket that a length is in: twice the octave, and which half of it."""
    octave = length.bit_length() - 1
    if octave == 0:
        return 0
    return min(2 * octave - 1 + (length >> (octave - 1) & 1), len(_BUCKETS) - 1)


class LengthCounts:
    """One histogram of answers. Rather than every old answer less, each new one weighs more."""

    __slots__ = ("_finished", "_first", "_last", "_total", "_truncated", "_weight")

    def __init__(self) -> None:
        self._finished = [0.0] * len(_BUCKETS)
        self._truncated = [0.0] * len(_BUCKETS)
        self._first = len(_BUCKETS)
        self._last = -1
        self._total = 0.0
        self._weight = 1.0

    @property
    def num_samples(self) -> float:
        """Answers by weight: all of them at first, and never more than half-life / ln 2."""
        return self._total / self._weight

    def add(self, length: int, was_truncated: bool, growth: float) -> None:
        """Counts an answer, which weighs ``growth`` times as much as the one before it."""
        bucket = _bucket_of(length)
        self._first = min(self._first, bucket)
        self._last = max(self._last, bucket)
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

    def shrunk_to(self, parent: "LengthCounts", most_samples: float) -> "LengthCounts":
        """These counts and the parent's, of which as many as it has count, and ``most_samples`` at the most."""
        if not parent._total:
            return self
        together = LengthCounts()
        own = 1.0 / self._weight
        others = min(1.0, most_samples / parent.num_samples) / parent._weight
        together._first = first = min(self._first, parent._first)
        together._last = last = max(self._last, parent._last)
        for bucket in range(first, last + 1):
            together._finished[bucket] = self._finished[bucket] * own + parent._finished[bucket] * others
            together._truncated[bucket] = self._truncated[bucket] * own + parent._truncated[bucket] * others
        together._total = self._total * own + parent._total * others
        return together

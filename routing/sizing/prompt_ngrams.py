"""The words of a prompt as a few small numbers, for predictors that look at them.

What a prompt asks for stands at its beginning or at its end, and the middle is material. So only a window at either
end is looked at, and a prompt of a hundred thousand tokens costs as much as one of a hundred.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policies.errors import ConfigError

MAX_BUCKETS = 1 << 24
MAX_NGRAMS = 4096

_HEAD, _TAIL = 0x51ED270B, 0x2545F491
_FIRST, _SECOND, _MIX = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramParams:
    """How prompts are hashed; a model reads only what was hashed as its training data was.

    Args:
        num_buckets: Hashes are below this.
        limit: Most n-grams of one prompt, at least 2.

    Raises:
        ConfigError: A number is out of its range.
    """

    num_buckets: int = 16_384
    limit: int = 64

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("num_buckets", self.num_buckets, 1, MAX_BUCKETS),
            ("limit", self.limit, 2, MAX_NGRAMS),
        ):
            if not least <= value <= most:
                raise ConfigError(f"ngrams.{name}", value, f"{least} to {most:,}")


DEFAULT_NGRAMS = NgramParams()


def hashed_ngrams(token_ids: Sequence[int], num_buckets: int, limit: int) -> tuple[int, ...]:
    """Hashes of the single tokens and of the pairs of neighbours at both ends of a prompt.

    The two ends hash differently, because the same word means another thing in the first line than in the last. The
    numbers depend on nothing but the arguments: a model that was trained on one machine reads them on any other.

    Args:
        token_ids: The whole prompt.
        num_buckets: Hashes are below this.
        limit: Most hashes that come back, half of them for either end.
    """
    window_tokens = (limit // 2 + 1) // 2
    head, tail = token_ids[:window_tokens], token_ids[-window_tokens:]
    return (*_hashes(head, _HEAD, num_buckets), *_hashes(tail, _TAIL, num_buckets))


def _hashes(tokens: Sequence[int], salt: int, num_buckets: int) -> Iterator[int]:
    """Multiply, mix the halves, multiply again: neighbours in the vocabulary end far apart."""
    before = -1
    for token in tokens:
        single = (token * _FIRST ^ salt) & _MASK
        yield (((single ^ single >> 15) * _MIX & _MASK) >> 8) % num_buckets
        if before >= 0:
            pair = (single + before * _SECOND) & _MASK
            yield (((pair ^ pair >> 15) * _MIX & _MASK) >> 8) % num_buckets
        before = token

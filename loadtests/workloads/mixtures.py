"""Several distributions of lengths in one."""

from dataclasses import dataclass

import numpy as np

from loadtests.schema.ranges import require_positive, require_some
from loadtests.workloads.lengths import Lengths
from loadtests.workloads.streams import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a mixture.

    Args:
        weight: Its share, relative to the other parts' weights.
        tokens: Lengths in this part.

    Raises:
        ConfigError: The weight is not a finite number above 0.
    """

    weight: float
    tokens: Lengths

    def __post_init__(self) -> None:
        require_positive("weight", self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Each length comes from one of several distributions.

    The draw picks the part by where it falls, and its position within the part's share is the draw for the part.
    Lengths of prompt and answer are drawn apart: long prompts that go with short answers are a traffic class of their
    own.

    Args:
        parts: The distributions and their weights.

    Raises:
        ConfigError: There is no part.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        require_some("parts", self.parts)

    def tokens(self, probabilities: Floats) -> Ints:
        shares = np.array([part.weight for part in self.parts], dtype=np.float64)
        shares /= shares.sum()
        ends = np.cumsum(shares)
        ends[-1] = 1.0
        which = np.searchsorted(ends, probabilities, side="right")
        tokens = np.empty(len(probabilities), dtype=np.int64)
        for index, part in enumerate(self.parts):
            chosen = which == index
            begin = ends[index] - shares[index]
            within = np.clip((probabilities[chosen] - begin) / shares[index], 0.0, np.nextafter(1.0, 0.0))
            tokens[chosen] = part.tokens.tokens(within)
        return tokens

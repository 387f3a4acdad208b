"""The most tokens that a request asks for, beside those that its answer would have."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from loadtests.schema.ranges import require
from loadtests.workloads.lengths import Lengths
from loadtests.workloads.streams import Floats, Ints

Limit = Lengths | Literal["exact"]
"""What the client allows an answer: ``"exact"`` is its very length; a draw below the length is raised to it."""


def require_limit(limit: Limit) -> None:
    """Raises ``ConfigError`` for a word that is no limit."""
    require(not isinstance(limit, str) or limit == "exact", "max_output_tokens", limit, "'exact' or lengths")


def limits_of(limit: Limit, lengths: Ints, draws: Iterator[Floats]) -> Ints:
    """Clients' limits on answers of these lengths, from one block of draws of the same size."""
    if isinstance(limit, str):
        return lengths
    return np.maximum(limit.tokens(next(draws)), lengths)

"""How long prompts and answers are, in tokens, and the most tokens that clients ask for.

Every distribution is its quantile function: a probability in, a whole number of tokens (at least 1) out. One uniform
draw makes one length, whatever the distribution, so that changing a distribution moves lengths and shifts no draw.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import log, log1p, sqrt
from typing import Literal, Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from loadtests.schema.ranges import MOST_TOKENS, require, require_positive, require_tokens
from loadtests.workloads.streams import Floats, Ints


class Lengths(Protocol):
    """A distribution of token counts."""

    def tokens(self, probabilities: Floats) -> Ints:
        """The quantiles at these probabilities (in [0, 1)): ascending probabilities give ascending lengths."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Always the same.

    Args:
        num_tokens: How many.

    Raises:
        ConfigError: It is below 1.
    """

    num_tokens: int

    def __post_init__(self) -> None:
        require_tokens("num_tokens", self.num_tokens, 1)

    def tokens(self, probabilities: Floats) -> Ints:
        return np.full(len(probabilities), self.num_tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Every whole number from one to the other, equally likely.

    Args:
        least_tokens: Shortest.
        most_tokens: Longest, included.

    Raises:
        ConfigError: The shortest is below 1 or above the longest.
    """

    least_tokens: int
    most_tokens: int

    def __post_init__(self) -> None:
        _require_bounds(self.least_tokens, self.most_tokens)

    def tokens(self, probabilities: Floats) -> Ints:
        count = self.most_tokens - self.least_tokens + 1
        tokens: Ints = self.least_tokens + (probabilities * count).astype(np.int64)
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Log-normal, rounded to the nearest whole number and truncated.

    Truncated, not clamped: what lies outside the bounds is spread over the inside, and nothing piles up at them.

    Args:
        median_tokens: Median before truncation.
        sigma: Standard deviation of the natural logarithm.
        least_tokens: Shortest.
        most_tokens: Longest, included.

    Raises:
        ConfigError: Sigma is not above 0, the shortest is below 1, or the median is not between the bounds.
    """

    median_tokens: float
    sigma: float
    most_tokens: int
    least_tokens: int = 1

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)
        _require_bounds(self.least_tokens, self.most_tokens)
        is_inside = self.least_tokens <= self.median_tokens <= self.most_tokens
        require(is_inside, "median_tokens", self.median_tokens, f"{self.least_tokens} to {self.most_tokens}")

    def tokens(self, probabilities: Floats) -> Ints:
        low, high = (ndtr(log(edge / self.median_tokens) / self.sigma) for edge in self._edges())
        normal = ndtri(low + probabilities * (high - low))
        rounded = np.rint(self.median_tokens * np.exp(self.sigma * normal))
        # The last float before an edge may round over it, and far out in a tail it is infinite.
        tokens: Ints = np.clip(rounded, self.least_tokens, self.most_tokens).astype(np.int64)
        return tokens

    def _edges(self) -> tuple[float, float]:
        return self.least_tokens - 0.5, self.most_tokens + 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Exponential, rounded up; its mean is exact.

    The number of tokens is ``ceil(X)`` with X exponential at the rate ``-ln(1 - 1/mean)``: the geometric distribution
    on 1, 2, ... with the mean asked for. Its squared coefficient of variation is ``1 - 1/mean``.

    Args:
        mean_tokens: Mean after rounding.

    Raises:
        ConfigError: The mean is not above 1.
    """

    mean_tokens: float

    def __post_init__(self) -> None:
        allowed = f"above 1, at most {MOST_TOKENS:,}"
        require(1 < self.mean_tokens <= MOST_TOKENS, "mean_tokens", self.mean_tokens, allowed)

    def tokens(self, probabilities: Floats) -> Ints:
        rounded_up = np.ceil(np.log1p(-probabilities) / log1p(-1.0 / self.mean_tokens)).astype(np.int64)
        return np.maximum(rounded_up, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """Pareto between two bounds, rounded: a few lengths are most of all tokens.

    Args:
        alpha: Of the tail: a length is ``x`` times as long with ``x ** -alpha`` of the probability; 1.1 is heavy, 2.5
            light.
        least_tokens: Shortest.
        most_tokens: Longest, included.

    Raises:
        ConfigError: Alpha is not a finite number above 0, or the shortest is below 1 or above the longest.
    """

    alpha: float
    least_tokens: int
    most_tokens: int

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)
        _require_bounds(self.least_tokens, self.most_tokens)

    def tokens(self, probabilities: Floats) -> Ints:
        beyond = (self.least_tokens / self.most_tokens) ** self.alpha  # what an unbounded tail would have behind it
        lengths = self.least_tokens * (1.0 - probabilities * (1.0 - beyond)) ** (-1.0 / self.alpha)
        tokens: Ints = np.clip(np.rint(lengths), self.least_tokens, self.most_tokens).astype(np.int64)
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical:
    """Quantiles as somebody measured them; between two points the logarithm of the length is linear.

    Measured lengths have several modes and long tails. Straight lines between a tail's few points would make its mean
    too high by 4 to 6 % for the traces in ``EMPIRICAL``; on the logarithm it is within 2 %.

    Args:
        points: (probability, tokens), both ascending, from probability 0 (the shortest) to 1 (the longest).

    Raises:
        ConfigError: The points don't begin at 0 or end at 1, a probability repeats, or tokens fall or are below 1.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        allowed = "(probability, tokens) pairs, probabilities rising from 0 to 1, tokens from at least 1 never falling"
        pairs = list(itertools.pairwise(self.points))
        is_whole = len(pairs) > 0 and self.points[0][0] == 0 and self.points[-1][0] == 1 and self.points[0][1] >= 1
        is_rising = all(left[0] < right[0] and left[1] <= right[1] <= MOST_TOKENS for left, right in pairs)
        require(is_whole and is_rising, "points", self.points, allowed)

    def tokens(self, probabilities: Floats) -> Ints:
        at, tokens = np.array(self.points, dtype=np.float64).T
        lengths: Ints = np.rint(np.exp(np.interp(probabilities, at, np.log(tokens)))).astype(np.int64)
        return lengths


def _require_bounds(least_tokens: int, most_tokens: int) -> None:
    require_tokens("least_tokens", least_tokens, 1)
    require_tokens("most_tokens", most_tokens, least_tokens)


_PROBABILITIES = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999, 1.0)


def _quantiles(*tokens: float) -> Empirical:
    return Empirical(points=tuple(zip(_PROBABILITIES, tokens, strict=True)))


EMPIRICAL: dict[str, Empirical] = {
    "azure-conv-prompt": _quantiles(2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 6179, 14050),
    "azure-conv-output": _quantiles(7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000),
    "mooncake-conversation-prompt": _quantiles(
        891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 121301, 126195
    ),
    "mooncake-conversation-output": _quantiles(1, 3, 10, 24, 156, 350, 472, 597, 698, 1119, 2000, 2000),
}
"""Quantiles of two public traces (Azure's LLM inference trace of 2023, conversations; Mooncake's conversations)."""


def correlated(probabilities: Floats, others: Floats, correlation: float) -> Floats:
    """Draws that go along with others: both uniform, with this rank correlation at the most (a Gaussian copula).

    Args:
        probabilities: Draws of their own, from [0, 1).
        others: The draws that they follow, as many.
        correlation: Of the normal draws behind both, -1 to 1.
    """
    if correlation == 0.0:
        return probabilities
    inside = np.nextafter(0.0, 1.0), np.nextafter(1.0, 0.0)
    own, theirs = (ndtri(np.clip(each, *inside)) for each in (probabilities, others))
    joint: Floats = ndtr(correlation * theirs + sqrt(1.0 - correlation**2) * own)
    return np.clip(joint, 0.0, inside[1])


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

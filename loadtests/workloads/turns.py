"""How many turns a conversation has, and how long its user thinks between them."""

from dataclasses import dataclass
from math import log1p
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from loadtests.schema.ranges import require, require_at_least, require_not_negative, require_positive
from loadtests.workloads.streams import Floats, Ints


class Turns(Protocol):
    """A distribution of the number of turns in a session."""

    def turns(self, probabilities: Floats) -> Ints:
        """The quantiles at these probabilities (in [0, 1)), at least 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTurns:
    """Always the same number.

    Args:
        num_turns: How many.

    Raises:
        ConfigError: It is below 1.
    """

    num_turns: int

    def __post_init__(self) -> None:
        require_at_least("num_turns", self.num_turns, 1)

    def turns(self, probabilities: Floats) -> Ints:
        return np.full(len(probabilities), self.num_turns, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricTurns:
    """After each turn the user goes on with the same probability, up to a limit.

    Truncated, not clamped: longer sessions are spread over the shorter ones.

    Args:
        mean_turns: Mean before truncation.
        most_turns: Longest session.

    Raises:
        ConfigError: The mean is not above 1, or the limit is below 1.
    """

    mean_turns: float
    most_turns: int = 100

    def __post_init__(self) -> None:
        require(1 < self.mean_turns < np.inf, "mean_turns", self.mean_turns, "a finite number above 1")
        require_at_least("most_turns", self.most_turns, 1)

    def turns(self, probabilities: Floats) -> Ints:
        log_goes_on = log1p(-1.0 / self.mean_turns)
        within = -np.expm1(log_goes_on * self.most_turns)  # share of sessions that the limit leaves
        unbounded = np.ceil(np.log1p(-probabilities * within) / log_goes_on).astype(np.int64)
        turns: Ints = np.clip(unbounded, 1, self.most_turns)
        return turns


class ThinkTime(Protocol):
    """A distribution of the time from the end of an answer to the next prompt."""

    def durations_s(self, probabilities: Floats) -> Floats:
        """The quantiles at these probabilities (in [0, 1))."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantThink:
    """Always the same.

    Args:
        duration_s: How long.

    Raises:
        ConfigError: It is negative or not finite.
    """

    duration_s: float

    def __post_init__(self) -> None:
        require_not_negative("duration_s", self.duration_s)

    def durations_s(self, probabilities: Floats) -> Floats:
        return np.full(len(probabilities), self.duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialThink:
    """Exponential think times.

    Args:
        mean_s: Mean.

    Raises:
        ConfigError: It is not a finite number above 0.
    """

    mean_s: float

    def __post_init__(self) -> None:
        require_positive("mean_s", self.mean_s)

    def durations_s(self, probabilities: Floats) -> Floats:
        return -self.mean_s * np.log1p(-probabilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalThink:
    """Log-normal think times.

    Args:
        median_s: Median.
        sigma: Standard deviation of the natural logarithm.

    Raises:
        ConfigError: Either is not a finite number above 0.
    """

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        require_positive("median_s", self.median_s)
        require_positive("sigma", self.sigma)

    def durations_s(self, probabilities: Floats) -> Floats:
        durations_s: Floats = self.median_s * np.exp(self.sigma * ndtri(probabilities))
        return durations_s

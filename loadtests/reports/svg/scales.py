"""Scales: where a value goes on an axis."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.stats import norm

from loadtests.results.analysis import Floats


class Scale(Protocol):
    """Puts values on an axis."""

    def position(self, values: Floats) -> Floats:
        """0 at the axis's start, 1 at its end."""
        ...


@dataclass(frozen=True)
class Linear:
    """Equal steps for equal differences, from ``low`` to ``high``."""

    low: float
    high: float

    def position(self, values: Floats) -> Floats:
        """0 at the axis's start, 1 at its end."""
        return (values - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Log:
    """Equal steps for equal ratios, from ``low`` to ``high``, both above 0; what is less is drawn at ``low``."""

    low: float
    high: float

    def position(self, values: Floats) -> Floats:
        """0 at the axis's start, 1 at its end."""
        found: Floats = np.log(np.maximum(values, self.low) / self.low) / math.log(self.high / self.low)
        return found


@dataclass(frozen=True)
class Probit:
    """Quantiles spread as a normal distribution's are: beside a :class:`Log`, a log-normal one is a straight line."""

    low: float
    high: float

    def position(self, values: Floats) -> Floats:
        """0 at the axis's start, 1 at its end."""
        start, end = norm.ppf((self.low, self.high))
        found: Floats = (norm.ppf(values) - start) / (end - start)
        return found

"""How a limit on what is in flight follows what is seen of the latency: three algorithms, each a step at a time."""

import math
from typing import Protocol

from policies.contracts import Rng
from policies.params import ADMISSION

WARM_UP_STEPS = 10
"""Steps after which the long average is an exponential one."""
LONG_STEPS = 600
"""Steps that it goes back, about."""


class LimitAlgorithm(Protocol):
    """Answers: what is the limit after another look at the latency?"""

    def step(self, limit: float, latency: float, in_flight: float) -> float:
        """The next limit.

        Args:
            limit: The one until now.
            latency: Of the last while, in multiples of what it would be without load or in any unit that does not
                depend on the requests' sizes.
            in_flight: The most that was in flight meanwhile, in the limit's unit.
        """
        ...


class Gradient2:
    """Shrinks the limit as the latency of late exceeds ``tolerance`` times its long average, and else lets it grow.

    Args:
        tolerance: That multiple.
        smoothing: Share of each step's wish that is fulfilled.

    Raises:
        ConfigError: A value out of range.
    """

    GROWTH = 4.0

    def __init__(self, tolerance: float, smoothing: float) -> None:
        ADMISSION.check_number("tolerance", tolerance, 1)
        ADMISSION.check_number("smoothing", smoothing, 0.001, 1)
        self._tolerance = tolerance
        self._smoothing = smoothing
        self._long = 0.0
        self._num_steps = 0

    def step(self, limit: float, latency: float, in_flight: float) -> float:
        self._num_steps += 1
        share = 1.0 / self._num_steps if self._num_steps <= WARM_UP_STEPS else 2.0 / (LONG_STEPS + 1)
        self._long += (latency - self._long) * share
        if self._long > 2.0 * latency:  # it is of worse times
            self._long *= 0.95
        if in_flight < limit / 2.0:
            return limit
        gradient = min(1.0, max(0.5, self._tolerance * self._long / latency))
        return limit + self._smoothing * (limit * gradient + self.GROWTH - limit)


class Vegas:
    """Takes the excess over the least latency seen for a queue, and keeps that between three and six times a logarithm.

    Every so often the least latency is taken anew.

    Args:
        rng: Spreads the times at which that happens.
    """

    PROBE_FACTOR = 30.0

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._least = math.inf
        self._until_probe = 0.0

    def step(self, limit: float, latency: float, in_flight: float) -> float:
        self._until_probe -= 1.0
        if self._until_probe <= 0.0:
            self._until_probe = self.PROBE_FACTOR * limit * (0.5 + 0.5 * self._rng.random())
            self._least = latency
            return limit
        self._least = min(self._least, latency)
        if 2.0 * in_flight < limit:
            return limit
        return limit + self._change(limit, math.ceil(limit * (1.0 - self._least / latency)))

    @staticmethod
    def _change(limit: float, queue: int) -> float:
        unit = max(1.0, math.log10(max(1.0, limit)))
        if queue <= unit:
            return 6.0 * unit
        if queue < 3.0 * unit:
            return unit
        return -unit if queue > 6.0 * unit else 0.0


class Aimd:
    """One more while the latency is bearable, a share less when it is not.

    Args:
        ceiling: The most that is bearable.
        backoff: By what the limit is multiplied beyond it.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, ceiling: float, backoff: float) -> None:
        ADMISSION.check_positive("ceiling", ceiling)
        ADMISSION.check_number("backoff", backoff, 0.1, 0.999)
        self._ceiling = ceiling
        self._backoff = backoff

    def step(self, limit: float, latency: float, in_flight: float) -> float:
        if latency > self._ceiling:
            return limit * self._backoff
        return limit + 1.0 if 2.0 * in_flight >= limit else limit

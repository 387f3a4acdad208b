"""When users come: arrival processes, all of them open loop.

A process is exact, whatever the block in which it is drawn. Rates that change in steps map the events of a process
with rate 1 through the inverse of the integrated rate; rates that change smoothly thin a process of the peak rate.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadtests.schema.ranges import require, require_at_least, require_not_negative, require_positive
from loadtests.workloads.streams import BLOCK, ClassStreams, Floats

PHASES_PER_BLOCK = 256


class ArrivalProcess(Protocol):
    """A point process on the time line from 0."""

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        """Endless blocks of arrival times in ascending order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Users who know nothing of each other.

    Args:
        rate_per_s: Arrivals per second.

    Raises:
        ConfigError: The rate is not a finite number above 0.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _require_rate("rate_per_s", self.rate_per_s)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        return (events / self.rate_per_s for events in _unit_poisson(streams))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Independent gaps that are burstier (cv > 1) or more regular (cv < 1) than a Poisson process's.

    vLLM's ``burstiness`` is the gamma shape: cv = 1 / sqrt(burstiness). The process is stationary from time 0 on: the
    first gap is what is left of one that had begun before, or a cv of 8 would open every run with 30 extra requests.

    Args:
        rate_per_s: Arrivals per second, in the long run.
        cv: Coefficient of variation of the gaps.

    Raises:
        ConfigError: Either is not a finite number above 0.
    """

    rate_per_s: float
    cv: float

    def __post_init__(self) -> None:
        _require_rate("rate_per_s", self.rate_per_s)
        require_positive("cv", self.cv)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        generator = streams.generator("arrivals")
        shape = 1.0 / self.cv**2
        scale_s = 1.0 / (shape * self.rate_per_s)
        # The gap that covers time 0 is length-biased, and time 0 is anywhere in it.
        last_s = generator.random() * generator.standard_gamma(shape + 1.0) * scale_s
        yield np.array([last_s])
        while True:
            times_s = last_s + np.cumsum(generator.standard_gamma(shape, BLOCK)) * scale_s
            last_s = float(times_s[-1])
            yield times_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """A Poisson process whose rate switches between two values; phases last exponential times.

    It starts in either phase with the phase's long-run share, so it is stationary from time 0 on.

    Args:
        on_rate_per_s: Arrivals per second in an on phase.
        off_rate_per_s: Arrivals per second in an off phase; 0 for silence.
        mean_on_s: Mean duration of an on phase.
        mean_off_s: Mean duration of an off phase.

    Raises:
        ConfigError: The off rate is negative, or another value is not a finite number above 0.
    """

    on_rate_per_s: float
    mean_on_s: float
    mean_off_s: float
    off_rate_per_s: float = 0.0

    def __post_init__(self) -> None:
        _require_rate("on_rate_per_s", self.on_rate_per_s)
        require_positive("mean_on_s", self.mean_on_s)
        require_positive("mean_off_s", self.mean_off_s)
        require_not_negative("off_rate_per_s", self.off_rate_per_s)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        return _rescaled(_unit_poisson(streams), self._phases(streams))

    def _phases(self, streams: ClassStreams) -> Iterator[tuple[Floats, Floats]]:
        generator = streams.generator("phases")
        starts_on = generator.random() < self.mean_on_s / (self.mean_on_s + self.mean_off_s)
        is_on = (np.arange(PHASES_PER_BLOCK) % 2 == 0) == starts_on
        rates_per_s = np.where(is_on, self.on_rate_per_s, self.off_rate_per_s)
        means_s = np.where(is_on, self.mean_on_s, self.mean_off_s)
        while True:
            yield generator.standard_exponential(PHASES_PER_BLOCK) * means_s, rates_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCrowd:
    """A Poisson process whose rate is multiplied for a while.

    Args:
        rate_per_s: Arrivals per second before and after.
        factor: By how much the rate is multiplied; below 1 it is a lull.
        from_s: When it begins.
        for_s: How long it lasts.

    Raises:
        ConfigError: A value is negative or not finite, or the rate or the duration is 0.
    """

    rate_per_s: float
    factor: float
    from_s: float
    for_s: float

    def __post_init__(self) -> None:
        _require_rate("rate_per_s", self.rate_per_s)
        require_not_negative("factor", self.factor)
        require_not_negative("from_s", self.from_s)
        require_positive("for_s", self.for_s)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        crowd = np.array([self.from_s, self.for_s]), np.array([1.0, self.factor]) * self.rate_per_s
        block_s = BLOCK / self.rate_per_s
        afterwards = itertools.repeat((np.array([block_s]), np.array([self.rate_per_s])))
        return _rescaled(_unit_poisson(streams), itertools.chain([crowd], afterwards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A Poisson process whose rate is a cosine: it starts at the trough and peaks in the middle of each period.

    Args:
        mean_rate_per_s: Arrivals per second, averaged over a period.
        peak_to_trough: Highest rate over lowest rate.
        period_s: From trough to trough.

    Raises:
        ConfigError: The ratio is below 1, or another value is not a finite number above 0.
    """

    mean_rate_per_s: float
    peak_to_trough: float
    period_s: float

    def __post_init__(self) -> None:
        _require_rate("mean_rate_per_s", self.mean_rate_per_s)
        require_at_least("peak_to_trough", self.peak_to_trough, 1.0)
        require_positive("period_s", self.period_s)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        swing = (self.peak_to_trough - 1.0) / (self.peak_to_trough + 1.0)
        peak_per_s = self.mean_rate_per_s * (1.0 + swing)
        per_s = 2.0 * math.pi / self.period_s
        dice = streams.generator("thinning")
        for events in _unit_poisson(streams):
            times_s = events / peak_per_s
            share_of_peak = (1.0 - swing * np.cos(per_s * times_s)) / (1.0 + swing)
            yield times_s[dice.random(len(times_s)) < share_of_peak]


def _unit_poisson(streams: ClassStreams) -> Iterator[Floats]:
    """Times of a Poisson process with rate 1."""
    generator = streams.generator("arrivals")
    last = 0.0
    while True:
        events = last + np.cumsum(generator.standard_exponential(BLOCK))
        last = float(events[-1])
        yield events


def _rescaled(unit_events: Iterator[Floats], phases: Iterator[tuple[Floats, Floats]]) -> Iterator[Floats]:
    """Times of a process with the rate of the phases (durations, rates), from events of a process with rate 1.

    The n-th event falls where the integral of the rate reaches the n-th unit event. Phases that lie behind the last
    event are forgotten, so an endless process takes no more memory than one block.
    """
    ends_s, integral = np.zeros(1), np.zeros(1)
    for events in unit_events:
        while integral[-1] <= events[-1]:
            durations_s, rates_per_s = next(phases)
            ends_s = np.concatenate((ends_s, ends_s[-1] + np.cumsum(durations_s)))
            integral = np.concatenate((integral, integral[-1] + np.cumsum(durations_s * rates_per_s)))
        yield np.interp(events, integral, ends_s)
        behind = int(np.searchsorted(integral, events[-1], side="right")) - 1
        ends_s, integral = ends_s[behind:], integral[behind:]


MOST_PER_S = 1_000_000


def _require_rate(field: str, value: float) -> None:
    """Something that happens so many times a second."""
    require(0 < value <= MOST_PER_S, field, value, f"more than 0, at most {MOST_PER_S:,}")

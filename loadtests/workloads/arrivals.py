"""When users come: arrival processes, all of them open loop.

A process is exact, whatever the block in which it is drawn. Rates that change in steps map the events of a process
with rate 1 through the inverse of the integrated rate; rates that change smoothly thin a process of the peak rate.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from scipy.optimize import brentq

from loadtests.schema.ranges import require, require_at_least, require_not_negative, require_positive
from loadtests.workloads.streams import BLOCK, ClassStreams, Floats

PHASES_PER_BLOCK = 256
MOST_CV = 100.0
SETTLED_LIVES = 5.0
"""So many times the mean life of a Hawkes cluster is drawn before time 0."""
ARRIVALS_PER_WINDOW = 1024
RAMP_STEPS = 1024
LEAST_BURST = 1e-9
"""A part of the time; what is less bursty than the rest of it being burst makes is Poisson."""
LEAST_PER_S = 1e-9
"""Stands for no arrivals at all: one in thirty years."""


class ArrivalProcess(Protocol):
    """A point process on the time line from 0."""

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        """Endless blocks of arrival times in ascending order."""
        ...

    def scaled(self, factor: float) -> Self:
        """The same process with ``factor`` times as many arrivals a second; what is bursty stays as bursty."""
        ...

    def mean_per_s(self, until_s: float) -> float:
        """Arrivals per second that are expected from 0 to ``until_s``."""
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

    def scaled(self, factor: float) -> Self:
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        return self.rate_per_s

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

    def scaled(self, factor: float) -> Self:
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        return self.rate_per_s

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

    def scaled(self, factor: float) -> Self:
        on_rate_per_s, off_rate_per_s = factor * self.on_rate_per_s, factor * self.off_rate_per_s
        return replace(self, on_rate_per_s=on_rate_per_s, off_rate_per_s=off_rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        arrivals = self.on_rate_per_s * self.mean_on_s + self.off_rate_per_s * self.mean_off_s
        return arrivals / (self.mean_on_s + self.mean_off_s)

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
class Hawkes:
    """Arrivals that draw others after them: each one is followed by ``1 - 1 / cv`` others in the mean, a while later.

    In the long run the variance of counts is ``cv ** 2`` times their mean, as it is with independent gaps of that
    ``cv``; but bursts are short or long by chance, and come out of nothing. Stationary from time 0 on: what came before
    is drawn too, for so long that less than a hundredth of what follows of it is missed.

    Args:
        rate_per_s: Arrivals per second, in the long run.
        cv: As bursty as independent gaps of this coefficient of variation; at least 1, which is Poisson.
        decay_s: Mean time from an arrival to one that it draws.

    Raises:
        ConfigError: The rate or the time is not a finite number above 0, or the cv is not 1 to 100.

    Source: Hawkes and Oakes, A cluster process representation of a self-exciting process, J. Appl. Prob. 11, 1974.
    """

    rate_per_s: float
    cv: float
    decay_s: float = 1.0

    def __post_init__(self) -> None:
        _require_rate("rate_per_s", self.rate_per_s)
        require(1 <= self.cv <= MOST_CV, "cv", self.cv, f"1 to {MOST_CV:g}")
        require_positive("decay_s", self.decay_s)

    def scaled(self, factor: float) -> Self:
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        return self.rate_per_s

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        generator = streams.generator("arrivals")
        own_per_s = self.rate_per_s / self.cv
        window_s = max(ARRIVALS_PER_WINDOW / self.rate_per_s, self.decay_s)
        from_s = -SETTLED_LIVES * self.cv * self.decay_s
        later = np.empty(0)
        while True:
            until_s = from_s + window_s if from_s >= 0.0 else 0.0
            num_own = generator.poisson(own_per_s * (until_s - from_s))
            own = generator.uniform(from_s, until_s, num_own)
            known = np.sort(np.concatenate((later, own, *self._drawn(own, generator))))
            now = int(np.searchsorted(known, until_s, side="left"))
            later, from_s = known[now:], until_s
            if now and until_s > 0.0:
                yield known[:now]

    def _drawn(self, first: Floats, generator: np.random.Generator) -> Iterator[Floats]:
        """All that follows of some arrivals, generation by generation."""
        parents = first
        while len(parents):
            children = np.repeat(parents, generator.poisson(1.0 - 1.0 / self.cv, len(parents)))
            parents = children + generator.standard_exponential(len(children)) * self.decay_s
            yield parents


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A Poisson process whose rate rises or falls in a straight line, and then stays: one kind of users drifts away.

    Args:
        from_rate_per_s: Arrivals per second until ``from_s``; 0 for none.
        to_rate_per_s: Arrivals per second from ``from_s + for_s`` on.
        from_s: When it begins to change.
        for_s: How long it takes.

    Raises:
        ConfigError: Both rates are 0, a value is negative or not finite, or the duration is 0.
    """

    from_rate_per_s: float
    to_rate_per_s: float
    from_s: float
    for_s: float

    def __post_init__(self) -> None:
        require_not_negative("from_rate_per_s", self.from_rate_per_s)
        require_not_negative("from_s", self.from_s)
        require_positive("for_s", self.for_s)
        require_not_negative("to_rate_per_s", self.to_rate_per_s)
        _require_rate("from_rate_per_s + to_rate_per_s", self.from_rate_per_s + self.to_rate_per_s)

    def scaled(self, factor: float) -> Self:
        rates = factor * self.from_rate_per_s, factor * self.to_rate_per_s
        return replace(self, from_rate_per_s=rates[0], to_rate_per_s=rates[1])

    def mean_per_s(self, until_s: float) -> float:
        ramped_s = min(max(until_s - self.from_s, 0.0), self.for_s)
        reached_per_s = self.from_rate_per_s + ramped_s / self.for_s * (self.to_rate_per_s - self.from_rate_per_s)
        before_s, after_s = min(until_s, self.from_s), max(until_s - self.from_s - self.for_s, 0.0)
        on_the_ramp = ramped_s * (self.from_rate_per_s + reached_per_s) / 2
        return (before_s * self.from_rate_per_s + on_the_ramp + after_s * self.to_rate_per_s) / until_s

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        halves = (np.arange(RAMP_STEPS) + 0.5) / RAMP_STEPS
        rates_per_s = self.from_rate_per_s + halves * (self.to_rate_per_s - self.from_rate_per_s)
        ramp = np.full(RAMP_STEPS, self.for_s / RAMP_STEPS), rates_per_s
        before = np.array([self.from_s]), np.array([self.from_rate_per_s])
        last_per_s = max(self.to_rate_per_s, LEAST_PER_S)
        afterwards = itertools.repeat((np.array([BLOCK / last_per_s]), np.array([last_per_s])))
        return _rescaled(_unit_poisson(streams), itertools.chain([before, ramp], afterwards))


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

    def scaled(self, factor: float) -> Self:
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        crowded_s = min(max(until_s - self.from_s, 0.0), self.for_s)
        return self.rate_per_s * (1.0 + (self.factor - 1.0) * crowded_s / until_s)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        crowd = np.array([self.from_s, self.for_s]), np.array([1.0, self.factor]) * self.rate_per_s
        block_s = BLOCK / self.rate_per_s
        afterwards = itertools.repeat((np.array([block_s]), np.array([self.rate_per_s])))
        return _rescaled(_unit_poisson(streams), itertools.chain([crowd], afterwards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A process whose rate is a cosine: it starts at the trough and peaks in the middle of each period.

    Args:
        mean_rate_per_s: Arrivals per second, averaged over a period.
        peak_to_trough: Highest rate over lowest rate.
        period_s: From trough to trough.
        cv: Coefficient of variation of the gaps, each measured in what is expected at its time; 1 is Poisson.

    Raises:
        ConfigError: The ratio is below 1, or another value is not a finite number above 0.
    """

    mean_rate_per_s: float
    peak_to_trough: float
    period_s: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        _require_rate("mean_rate_per_s", self.mean_rate_per_s)
        require_at_least("peak_to_trough", self.peak_to_trough, 1.0)
        require_positive("period_s", self.period_s)
        require_positive("cv", self.cv)

    def scaled(self, factor: float) -> Self:
        return replace(self, mean_rate_per_s=factor * self.mean_rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        angle = 2.0 * math.pi * until_s / self.period_s
        return self.mean_rate_per_s * (1.0 - self._swing * math.sin(angle) / angle)

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        if self.cv != 1.0:
            unit_events = Gamma(rate_per_s=1.0, cv=self.cv).times_s(streams)
            return _rescaled(unit_events, itertools.repeat(self._period()))
        return self._thinned(streams)

    @property
    def _swing(self) -> float:
        return (self.peak_to_trough - 1.0) / (self.peak_to_trough + 1.0)

    def _period(self) -> tuple[Floats, Floats]:
        """One period in steps: how long each is, and the rate in the middle of it."""
        middles = 2.0 * math.pi * (np.arange(PHASES_PER_BLOCK) + 0.5) / PHASES_PER_BLOCK
        durations_s = np.full(PHASES_PER_BLOCK, self.period_s / PHASES_PER_BLOCK)
        return durations_s, self.mean_rate_per_s * (1.0 - self._swing * np.cos(middles))

    def _thinned(self, streams: ClassStreams) -> Iterator[Floats]:
        swing = self._swing
        peak_per_s = self.mean_rate_per_s * (1.0 + swing)
        per_s = 2.0 * math.pi / self.period_s
        dice = streams.generator("thinning")
        for events in _unit_poisson(streams):
            times_s = events / peak_per_s
            share_of_peak = (1.0 - swing * np.cos(per_s * times_s)) / (1.0 + swing)
            yield times_s[dice.random(len(times_s)) < share_of_peak]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmpp:
    """Bursts and lulls: a Poisson process whose rate switches between two values, fitted to how bursty it is.

    In windows of ``window_s`` the variance of counts is ``cv ** 2`` times their mean, as it is in long windows of
    independent gaps of that ``cv``. Bursts last ``burst_s`` in the mean and lulls have ``lull_fraction`` of the mean
    rate; how large a part of the time is burst follows: with ``p`` of it, ``q = 1 - p`` and ``t = window_s / (q *
    burst_s)``,

      cv ** 2 = 1 + 2 * (1 - lull_fraction) ** 2 * rate * burst_s * q ** 2 / p * (1 - (1 - exp(-t)) / t)

    Args:
        rate_per_s: Arrivals per second, in the long run.
        cv: As bursty as independent gaps of this coefficient of variation; at least 1, which is Poisson.
        burst_s: Mean duration of a burst.
        lull_fraction: Rate between bursts, as a part of ``rate_per_s``; 0 to less than 1.
        window_s: The width of windows in which counts vary so much.

    Raises:
        ConfigError: The cv is not 1 to 100 or out of reach of such bursts, the part is not 0 to below 1, or another
            value is no finite number above 0.

    Source: Heffes and Lucantoni, A Markov modulated characterization of packetized voice, IEEE JSAC 4(6), 1986.
    """

    rate_per_s: float
    cv: float
    burst_s: float = 2.0
    lull_fraction: float = 0.25
    window_s: float = 30.0

    def __post_init__(self) -> None:
        _require_rate("rate_per_s", self.rate_per_s)
        require(1 <= self.cv <= MOST_CV, "cv", self.cv, f"1 to {MOST_CV:g}")
        require_positive("burst_s", self.burst_s)
        require(0 <= self.lull_fraction < 1, "lull_fraction", self.lull_fraction, "0 to less than 1")
        require_positive("window_s", self.window_s)
        reached = math.sqrt(self._dispersion(LEAST_BURST))
        require(
            self.cv < reached, "cv", self.cv, f"less than {reached:g}, which is all that bursts this short can make"
        )

    def scaled(self, factor: float) -> Self:
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def mean_per_s(self, until_s: float) -> float:
        return self.rate_per_s

    def times_s(self, streams: ClassStreams) -> Iterator[Floats]:
        if self.cv == 1.0:
            return Poisson(rate_per_s=self.rate_per_s).times_s(streams)
        burst = self._burst_fraction()
        lull_per_s = self.lull_fraction * self.rate_per_s
        switching = OnOff(
            on_rate_per_s=lull_per_s + (self.rate_per_s - lull_per_s) / burst,
            off_rate_per_s=lull_per_s,
            mean_on_s=self.burst_s,
            mean_off_s=self.burst_s * (1.0 - burst) / burst,
        )
        return switching.times_s(streams)

    def _burst_fraction(self) -> float:
        """The more of the time is burst, the less bursty it is: from as much as one likes to nothing."""
        return float(brentq(lambda burst: self._dispersion(burst) - self.cv**2, LEAST_BURST, 1.0 - LEAST_BURST))

    def _dispersion(self, burst: float) -> float:
        """Variance of counts over their mean, in windows."""
        lull = 1.0 - burst
        lives = self.window_s / (lull * self.burst_s)
        inside = 1.0 + math.expm1(-lives) / lives
        swing = (1.0 - self.lull_fraction) ** 2 * self.rate_per_s * self.burst_s
        return 1.0 + 2.0 * swing * lull**2 / burst * inside


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

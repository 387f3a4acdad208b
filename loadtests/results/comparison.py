"""Policy against baseline on the same seeds: how much of the difference is the policy and how much is chance.

A seed gives both the same requests at the same times, so seeds are compared in pairs, and a seed is the unit that is
resampled: requests of one run wait in the same queues and are far from independent.

Bootstrap intervals of a handful of values come out too narrow. The tails are therefore taken further out, as far as
Student's t asks for at that number of seeds (the "expanded percentile" interval). Even so fewer than five seeds can't
carry a 95 % interval; there the range over seeds is given, and nothing is concluded from it.

Source: T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69(4), 2015.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from loadtests.results.metrics import Better

CONFIDENCE = 0.95
MIN_SEEDS = 5
"""Fewer seeds carry no interval."""
MAX_SEEDS_ENUMERATED = 6
"""Up to so many seeds every resample there is gets used, so nothing is random."""
NUM_RESAMPLES = 20_000
"""With more seeds, so many are drawn; always the same."""


class IntervalKind(StrEnum):
    """What an interval is."""

    BOOTSTRAP_95 = "bootstrap_95"
    RANGE_OVER_SEEDS = "range_over_seeds"
    NONE = "none"


class Change(StrEnum):
    """What can be concluded about a policy against a baseline."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    NO_DIFFERENCE = "no difference"
    TOO_FEW_SEEDS = "too few seeds"
    UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedEstimate:
    """A value over seeds and how well it is known.

    Args:
        value: The point estimate; NaN where it is not defined.
        low: Lower end of the interval; NaN where there is none.
        high: Upper end.
        kind: What the interval is.
    """

    value: float
    low: float
    high: float
    kind: IntervalKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric, policy against baseline.

    Args:
        policy: The policy's mean over seeds.
        baseline: The baseline's.
        ratio: Policy's mean / baseline's mean. NaN when the baseline's mean is 0; without an interval when any of
            its values is not positive.
        difference: Policy's mean minus baseline's.
        win_rate: Share of seeds in which the policy is better, a tie counting half; NaN where neither way is better.
        change: The conclusion, from the interval of the difference.
    """

    policy: float
    baseline: float
    ratio: SeedEstimate
    difference: SeedEstimate
    win_rate: float
    change: Change


def compare(policy: Sequence[float], baseline: Sequence[float], better: Better) -> Comparison:
    """Compares a metric's values, seed by seed.

    Args:
        policy: One value for each seed.
        baseline: The baseline's, for the same seeds in the same order.
        better: Which way the metric improves.

    Raises:
        ValueError: Not one value of each for every seed, or no seed at all.
    """
    if len(policy) != len(baseline) or not policy:
        raise ValueError(f"got {len(policy)} values of the policy and {len(baseline)} of the baseline")
    ours, theirs = np.asarray(policy, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    draws = _draws(len(ours))
    mean_ours, mean_theirs = ours[draws].mean(axis=1), theirs[draws].mean(axis=1)
    difference = _estimate(float(ours.mean() - theirs.mean()), mean_ours - mean_theirs, ours - theirs)
    return Comparison(
        policy=float(ours.mean()),
        baseline=float(theirs.mean()),
        ratio=_ratio(ours, theirs, mean_ours, mean_theirs),
        difference=difference,
        win_rate=_win_rate(ours - theirs, better),
        change=conclude(difference, better),
    )


def p_of_no_more_than(policy: Sequence[float], baseline: Sequence[float], limit: float) -> float:
    """The one-sided error probability at which the lower end of the difference's interval is at a limit.

    Args:
        policy: One value for each seed.
        baseline: The baseline's, for the same seeds in the same order.
        limit: Of the difference policy minus baseline.

    Returns:
        0 to 1; from ``MIN_SEEDS`` on it is at most 2.5% just where ``compare``'s interval begins at the limit or above.
    """
    gaps = np.asarray(policy, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    num_seeds = len(gaps)
    below = float(np.mean(gaps[_draws(num_seeds)].mean(axis=1) < limit))
    normal = stats.norm.isf(below) / math.sqrt(num_seeds / (num_seeds - 1))
    return float(stats.t.sf(normal, num_seeds - 1))


def _ratio(ours: NDArray[np.float64], theirs: NDArray[np.float64], *means: NDArray[np.float64]) -> SeedEstimate:
    value = float(ours.mean() / theirs.mean()) if theirs.mean() else math.nan
    if not (theirs > 0).all():
        return SeedEstimate(value=value, low=math.nan, high=math.nan, kind=IntervalKind.NONE)
    return _estimate(value, means[0] / means[1], ours / theirs)


def _estimate(value: float, resampled: NDArray[np.float64], per_seed: NDArray[np.float64]) -> SeedEstimate:
    num_seeds = len(per_seed)
    if num_seeds < MIN_SEEDS:
        kind, low, high = IntervalKind.RANGE_OVER_SEEDS, per_seed.min(), per_seed.max()
    else:
        tail = _tail(num_seeds)
        kind, (low, high) = IntervalKind.BOOTSTRAP_95, np.quantile(resampled, (tail, 1 - tail))
    return SeedEstimate(value=value, low=float(low), high=float(high), kind=kind)


@cache
def _tail(num_seeds: int) -> float:
    """The share of resamples beyond each end of the interval."""
    student = stats.t.ppf((1 + CONFIDENCE) / 2, num_seeds - 1)
    return float(stats.norm.sf(student * math.sqrt(num_seeds / (num_seeds - 1))))


@cache
def _draws(num_seeds: int) -> NDArray[np.intp]:
    """Which seeds are in each resample, a row for each."""
    if num_seeds <= MAX_SEEDS_ENUMERATED:
        return np.indices((num_seeds,) * num_seeds, dtype=np.intp).reshape(num_seeds, -1).T
    return np.random.default_rng(0).integers(num_seeds, size=(NUM_RESAMPLES, num_seeds))


def _win_rate(differences: NDArray[np.float64], better: Better) -> float:
    if better is Better.NEITHER:
        return math.nan
    gains = differences if better is Better.HIGHER else -differences
    return float(np.mean((gains > 0) + 0.5 * (gains == 0)))


def conclude(difference: SeedEstimate, better: Better) -> Change:
    """What an interval of policy minus baseline says.

    Args:
        difference: The interval.
        better: Which way the metric improves.
    """
    if math.isnan(difference.value):
        return Change.UNDEFINED
    if difference.kind is not IntervalKind.BOOTSTRAP_95:
        return Change.TOO_FEW_SEEDS
    if not (difference.low > 0 or difference.high < 0):
        return Change.NO_DIFFERENCE
    is_higher = difference.low > 0
    if better is Better.NEITHER:
        return Change.HIGHER if is_higher else Change.LOWER
    return Change.BETTER if is_higher == (better is Better.HIGHER) else Change.WORSE

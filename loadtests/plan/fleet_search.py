"""How many replicas of one candidate keep the SLOs at the lowest price: found in the simulator, size by size."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from loadtests.plan.sizing.pools import pools_of
from loadtests.plan.sizing.prediction import Replicas
from loadtests.plan.verification import keeps_slos, means, simulated, sized
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.simulation.simulation import Run
from policies.errors import ConfigError

MOST_DOUBLINGS = 4
"""Of the size that formulas say, or of the scenario's own: what does not keep its SLOs then is taken to never do."""
MOST_REPLICAS = 512
"""Of a pool that is simulated."""
Sizes = tuple[int, ...]
"""Replicas of each pool, in the candidate's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Policies on pools of some kinds, with one engine, in any number.

    Args:
        name: Of the policies, and of the engine where there are several.
        scenario: With these and nothing to compare them with.
        dollars_per_h: What a replica costs.
    """

    name: str
    scenario: Scenario
    dollars_per_h: float

    def replicas(self, sizes: Sizes) -> Replicas:
        """Sizes by role."""
        return {pool.role: size for pool, size in zip(self.scenario.fleet.pools, sizes, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate of some size, simulated with all of its scenario's seeds.

    Args:
        candidate: Its name.
        replicas: Its size.
        dollars_per_h: What all of them cost.
        keeps: Whether its SLOs are kept; :func:`loadtests.plan.verification.keeps_slos`.
        metrics: Means over seeds, by name.
    """

    candidate: str
    replicas: Replicas
    dollars_per_h: float
    keeps: bool
    metrics: Mapping[str, float]

    @property
    def goodput_fraction(self) -> float:
        """Of the requests, within their SLOs."""
        return self.metrics["goodput_fraction"]

    @property
    def dollars_per_million_tokens(self) -> float:
        """Of the prompts and answers of requests within their SLOs; infinite where none is."""
        tokens_per_h = 3600 * self.metrics["goodput_tokens_per_s"]
        return self.dollars_per_h / tokens_per_h * 1e6 if tokens_per_h else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What became of a candidate.

    Args:
        candidate: Which.
        cheapest: The cheapest size that keeps the SLOs; ``None``: none that was tried does.
        trials: All sizes that were simulated.
    """

    candidate: Candidate
    cheapest: Trial | None
    trials: Sequence[Trial]


def candidates_of(scenario: Scenario, variants: Sequence[str], engines: Mapping[str, float]) -> list[Candidate]:
    """A scenario's policies and its baselines, on each engine.

    Args:
        scenario: The scenario.
        variants: Those of its variants that count.
        engines: Dollars an hour for a replica, by profile.

    Raises:
        ConfigError: There is no such variant or profile, or a variant has two pools with the same role.
    """
    if strangers := [each for each in variants if each not in scenario.variants]:
        raise ConfigError("variant", strangers[0], f"one of {', '.join(scenario.variants)}")
    found = []
    for variant in variants:
        alone = scenario.alone(variant)
        roles = [str(pool.role) for pool in alone.fleet.pools]
        if len(set(roles)) != len(roles):
            raise ConfigError(f"the pools of {variant}", roles, "one of each role")
        for profile, dollars_per_h in engines.items():
            name = variant if len(engines) == 1 else f"{variant} on {profile}"
            on_engine = alone.changed(profile=profile)
            found.append(Candidate(name=name, scenario=on_engine, dollars_per_h=dollars_per_h))
    return found


def searched(candidate: Candidate, attained_fraction: float) -> Searched:
    """The cheapest size of a candidate that keeps its SLOs.

    Args:
        candidate: Which.
        attained_fraction: Of the requests, that are to be within their SLOs.

    Raises:
        RunFailed: A simulation ended in an error.
    """
    trials: dict[Sizes, Trial] = {}

    def keeps(*sizes: int) -> bool:
        if sizes not in trials:
            trials[sizes] = _tried(candidate, sizes, attained_fraction)
        return trials[sizes].keeps

    cheapest = smallest_sizes(keeps, _start(candidate, attained_fraction))
    return Searched(
        candidate=candidate,
        cheapest=None if cheapest is None else trials[cheapest],
        trials=list(trials.values()),
    )


def smallest_sizes(keeps: Callable[..., bool], start: Sizes) -> Sizes | None:
    """Of one pool or two, the sizes with the smallest sum that keep what all larger ones keep.

    All pools are doubled until they keep it. Of one pool the fewest are then bracketed and bisected. Of two, the fewest
    of the first beside enough of the second, and for each number of the first from there on the fewest of the second,
    until the sum can't get smaller.

    Args:
        keeps: Asked with a size for each pool.
        start: Where to look first.

    Returns:
        The sizes; ``None`` where none does after ``MOST_DOUBLINGS``.
    """
    enough = start
    for _ in range(MOST_DOUBLINGS):
        if keeps(*enough):
            break
        enough = tuple(min(2 * each, MOST_REPLICAS) for each in enough)
    if not keeps(*enough):
        return None
    return (fewest(keeps, enough[0]),) if len(enough) == 1 else _smallest_pair(keeps, *enough)


def fewest(keeps: Callable[[int], bool], enough: int) -> int:
    """The smallest number that keeps what all above it keep; those just below ``enough`` are tried first.

    Args:
        keeps: Asked of numbers from 1 on.
        enough: Keeps it, and is not asked about.
    """
    step = 1
    while enough - step >= 1 and keeps(enough - step):
        enough, step = enough - step, 2 * step
    between = range(max(1, enough - step + 1), enough)
    return between.start + bisect_left(between, True, key=keeps)


def _smallest_pair(keeps: Callable[[int, int], bool], first: int, second: int) -> Sizes:
    size = fewest(lambda number: keeps(number, second), first)
    least_second = fewest(partial(keeps, first), second)
    best = size, fewest(partial(keeps, size), second)
    while size + 1 + least_second < sum(best):
        size += 1
        beside = fewest(partial(keeps, size), best[1])
        best = min(best, (size, beside), key=sum)
    return best


def _tried(candidate: Candidate, sizes: Sizes, attained_fraction: float) -> Trial:
    replicas = candidate.replicas(sizes)
    scenario = sized(candidate.scenario, replicas)
    results = [simulated(Run(scenario=scenario, variant=POLICY, seed=seed)) for seed in scenario.seeds]
    return Trial(
        candidate=candidate.name,
        replicas=replicas,
        dollars_per_h=candidate.dollars_per_h * sum(sizes),
        keeps=keeps_slos(results, attained_fraction),
        metrics=means(results),
    )


def _start(candidate: Candidate, attained_fraction: float) -> Sizes:
    """What formulas say, as far as there are some; else what the scenario has."""
    scenario = candidate.scenario
    try:
        return tuple(pools_of(scenario).fewest(attained_fraction).replicas.values())
    except ConfigError:  # conversations, or SLOs that formulas with their margins see kept by no size
        return tuple(pool.replicas for pool in scenario.fleet.pools)

"""How many replicas each pool had, second by second: as a deployment said, or as they were in a simulation."""

import itertools
import math
from collections.abc import Mapping, Sequence

from cluster.sim.run_table import ReplicaTotals
from loadtests.results.run_record import Moment

READY = "ready_replicas_"
"""A pool's name follows: its replicas that take requests."""
HELD = "held_replicas"
"""Those of all pools that somebody pays for: they start, take requests, or finish what they have."""
DIRECTIONS_IN_S = 600.0
"""In as long a pool's changes of direction are counted."""
ROUNDING_S = 1e-6


def moments_of(replicas: Sequence[ReplicaTotals], period_s: float = 1.0) -> tuple[Moment, ...]:
    """What a deployment would have said of the replicas of a simulation.

    Args:
        replicas: All that there ever were.
        period_s: From one moment to the next.
    """
    pools = list(dict.fromkeys(each.pool for each in replicas))
    last_s = max((each.gone_s for each in replicas), default=0.0)
    return tuple(_moment(replicas, pools, period_s * number) for number in range(math.ceil(last_s / period_s)))


def _moment(replicas: Sequence[ReplicaTotals], pools: Sequence[str], at_s: float) -> Moment:
    gauges = dict.fromkeys((*(READY + pool for pool in pools), HELD), 0.0)
    for each in replicas:
        gauges[READY + each.pool] += each.ready_s <= at_s < each.gone_s
        gauges[HELD] += each.asked_s <= at_s < each.gone_s
    return Moment(at_s=at_s, gauges=gauges)


def held_s(moments: Sequence[Moment]) -> float:
    """For how long replicas were held, all together; each moment holds until the next one."""
    known = [(each.at_s, each.gauges[HELD]) for each in moments if HELD in each.gauges]
    return sum(held * (until_s - from_s) for (from_s, held), (until_s, _) in itertools.pairwise(known))


def mean_ready(moments: Sequence[Moment], from_s: float, until_s: float) -> Mapping[str, float]:
    """How many of each pool's replicas took requests between two times, in the mean; a pool is left out that nobody
    spoke of."""
    seen: dict[str, list[float]] = {}
    for moment in moments:
        if from_s <= moment.at_s < until_s:
            for name, value in moment.gauges.items():
                if name.startswith(READY):
                    seen.setdefault(name.removeprefix(READY), []).append(value)
    return {pool: sum(values) / len(values) for pool, values in seen.items()}


def direction_changes(replicas: Sequence[ReplicaTotals]) -> int:
    """How often a pool that grew shrank next, or the other way round, in the ten minutes and the pool with the most.

    A replica counts from when it was asked for until it was gone, by a crash too. What a run begins with is no growth,
    and what is left when it is over no fall.

    Args:
        replicas: All that there ever were.
    """
    over_s = max((each.gone_s for each in replicas), default=0.0)
    return max((_most_turns(pool, replicas, over_s) for pool in {each.pool for each in replicas}), default=0)


def _most_turns(pool: str, replicas: Sequence[ReplicaTotals], over_s: float) -> int:
    changes: dict[float, int] = {}
    for each in replicas:
        if each.pool == pool:
            changes[each.asked_s] = changes.get(each.asked_s, 0) + 1
            changes[each.gone_s] = changes.get(each.gone_s, 0) - 1
    steps = [(at_s, by) for at_s, by in sorted(changes.items()) if by and 0.0 < at_s < over_s - ROUNDING_S]
    turns_s = [at_s for (_, before), (at_s, by) in itertools.pairwise(steps) if (before > 0) is not (by > 0)]
    return max((sum(from_s <= at_s < from_s + DIRECTIONS_IN_S for at_s in turns_s) for from_s in turns_s), default=0)

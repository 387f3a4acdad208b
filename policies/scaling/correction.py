"""How far a model of a pool is off, by how many of its requests were late although it had what the model asked for."""

import math
from dataclasses import dataclass

from policies.pool_views import PoolView

LEAST_STEP, MOST = 0.1, 2.0
"""How much more at a time, at the least, and in all: what is late with twice as many is late for another reason."""
SETTLED_S, MEMORY_S, FORGET_S = 60.0, 300.0, 1800.0
"""After a new replica what had waited is late still; verdicts count 1/e after that, and so does what they led to."""
SURE_DEVIATIONS = 3.0
"""So many standard deviations of a Poisson more are late than may be, or it is chance."""


@dataclass(slots=True)
class _Pool:
    factor: float = 1.0
    num_replicas: int = 0
    settled_s: float = 0.0
    num_in_time: float = 0.0
    num_late: float = 0.0

    def count(self, pool: PoolView, period_s: float) -> None:
        """What has had its verdict since the last time."""
        fading = math.exp(-period_s / MEMORY_S)
        self.num_in_time = fading * self.num_in_time + pool.demand.num_in_time
        self.num_late = fading * self.num_late + pool.demand.num_late

    def has_more(self, num_replicas: int, now_s: float) -> None:
        """What was late was so with fewer."""
        self.settled_s, self.num_replicas = now_s + SETTLED_S, num_replicas
        self.num_in_time = self.num_late = 0.0


class Correction:
    """How many times as many replicas as a model says each pool needs.

    Where more than ``most_late_fraction`` of a pool's requests were late with all the replicas that the model wanted,
    and that was no chance, as much more as were late, a tenth at the least; at most twice as many. Then nothing counts
    until a replica more is there, if it takes one, and what had waited is done. Half an hour leaves a third of it.

    Source: the correction factors of Dynamo's SLA planner, which are observed latencies over expected ones; here by
    verdicts, since a mean says little of the requests that are late.

    Args:
        most_late_fraction: So many may be late; 1: the model is always right.
    """

    def __init__(self, most_late_fraction: float) -> None:
        self._most_late_fraction = most_late_fraction
        self._pools: dict[str, _Pool] = {}

    def factor(self, name: str, pool: PoolView, wanted: float, now_s: float, period_s: float) -> float:
        """For a pool, after the verdicts since the last time. O(1).

        Args:
            name: The pool's name.
            pool: What it has.
            wanted: Replicas that are wanted of it, or were the last time.
            now_s: Now.
            period_s: Seconds since the last time.
        """
        known = self._pools.setdefault(name, _Pool())
        known.factor = 1.0 + (known.factor - 1.0) * math.exp(-period_s / FORGET_S)
        if pool.num_starting or pool.num_ready > known.num_replicas:
            known.has_more(pool.num_ready, now_s)
        known.num_replicas = pool.num_ready
        if now_s < known.settled_s or not wanted <= pool.num_ready < pool.max_replicas:
            return known.factor
        known.count(pool, period_s)
        total = known.num_in_time + known.num_late
        may_be_late = self._most_late_fraction * total
        if known.num_late > may_be_late + SURE_DEVIATIONS * math.sqrt(max(1.0, may_be_late)):
            known.factor = min(MOST, known.factor + max(LEAST_STEP, known.num_late / total))
            known.has_more(pool.num_ready, now_s)
        return known.factor

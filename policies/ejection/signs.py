"""What gives a replica away."""

import math
from collections.abc import Iterator, Mapping, Sequence

from policies.decisions import EjectionReason
from policies.ejection.health import Health
from policies.ejection.trail import Trail, weigh_all
from policies.params import EJECTION

SIGNS = tuple(reason.value for reason in EjectionReason)
ENOUGH_OF_A_NEWCOMER = 0.5
"""Half a value that is as slow as can be: with ``factor`` 2.5 the first one that takes four times as long as usual."""
Trails = dict[str, tuple[Trail, Sequence[float]]]
"""By replica, with the values of its attempts that wait."""


class Signs:
    """Looks at the replicas of a pool side by side, and has less patience with those that have been out.

    Args:
        wanted: What to look for.
        max_failures: In a row.
        factor: How many times slower than usual is too slow.
        num_slow: How many that are slower still, by as much again, are enough.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, wanted: Sequence[str], max_failures: int, factor: float, num_slow: int) -> None:
        EJECTION.check_some("signs", wanted, SIGNS)
        self.wanted = frozenset(EjectionReason(each) for each in wanted)
        EJECTION.check_number("max_failures", max_failures, 1)
        EJECTION.check_number("factor", factor, 1.01)
        EJECTION.check_number("num_slow", num_slow, 1)
        self._max_failures = max_failures
        self._factor = factor
        self._num_slow = num_slow

    def standing_out(self, pool: Mapping[str, Health], now_s: float) -> dict[str, tuple[float, EjectionReason]]:
        """Replicas against which enough speaks: how much, and what it is."""
        found: dict[str, tuple[float, EjectionReason]] = {}
        for reason, trails in self._trails(pool, now_s):
            for replica_id, against in weigh_all(trails, self._factor, now_s).items():
                if against >= (ENOUGH_OF_A_NEWCOMER if pool[replica_id].is_newcomer else self._num_slow):
                    found[replica_id] = against, reason
        if EjectionReason.FAILURES in self.wanted:
            for replica_id, health in pool.items():
                if health.num_failures >= (1 if health.is_newcomer else self._max_failures):
                    found[replica_id] = math.inf, EjectionReason.FAILURES
        return found

    def _trails(self, pool: Mapping[str, Health], now_s: float) -> Iterator[tuple[EjectionReason, Trails]]:
        of = pool.items()
        if EjectionReason.TOKENS in self.wanted:
            yield EjectionReason.TOKENS, {each: (health.token_times, ()) for each, health in of}
        if EjectionReason.FIRST_TOKENS in self.wanted:
            slowdowns: Trails = {each: (health.slowdowns, health.slowdowns_so_far(now_s)) for each, health in of}
            yield EjectionReason.FIRST_TOKENS, slowdowns

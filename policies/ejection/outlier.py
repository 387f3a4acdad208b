"""Replicas that fail or are slow while their peers are not."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import UNLIMITED_ATTEMPTS, Allow, Eject, EjectionDecision, EjectionReason
from policies.ejection.health import Health
from policies.ejection.health_records import HealthRecords
from policies.ejection.signs import SIGNS, Signs
from policies.params import EJECTION
from policies.signals import ATTEMPT_ENDS, AttemptSignal, Dispatched, FirstToken, Signal
from policies.views import ReplicaView

LOOK_EVERY_S = 0.5
"""A look at a pool takes as many steps as it has replicas; failures and newcomers are looked at sooner."""
NUM_PROBES = 5
"""Good results after which a newcomer is one no more: 1, 2, 4, 8 and 16 attempts at a time, then no bound."""


class Outlier:
    """Which replicas get nothing for a while? Those that fail again and again, or are far slower than others.

    Rule: a replica stands out by one of three ``signs``. ``failures``: ``max_failures`` lost attempts or engine errors
        without a success in between. ``first_tokens``: the time to first token, over what was expected of the
        replica's queue and the prompt, beside what is usual in its pool; more than ``factor`` times that speaks
        against the replica, less than that for it, and as much as ``num_slow`` that are ``factor`` times ``factor``
        is enough. Attempts that wait count as soon as they are late. ``tokens``: the same with the time of a token.
        It is out for ``base_s``, twice that the next time and so on up to ``max_s``; who has stayed in for ``max_s``
        begins anew. Back again it takes one attempt at a time, twice as many after each that went well, and is out at
        once if one fails or is slow. At most ``max_fraction`` of a pool, rounded up, is out at a time, and never all
        of it; the worst go first.
    State: for each replica its last values, what speaks against it and its failures; every attempt under way.
    Consumes: ``Dispatched``, ``FirstToken``, ``Completed``, ``Failed``, ``Cancelled`` and ``Superseded``.
    Complexity: O(1) for a signal; O(n log n) for the n replicas of a pool twice a second, and after each failure.
    Failure mode: a gateway learns from its own attempts alone, so of several gateways each takes longer to see that a
        replica is slow; without a load coordinator, through which they tell one another, each finds out and tries it
        again for itself. A slow decode shows no sooner than its answers end. Requests
        that break every engine they come to look like broken replicas, up to ``max_fraction``.
    Source: Envoy's outlier detection (consecutive failures, growing times, a bound on how many); for slowness a
        cumulative sum test beside the pool's median (Page 1954), as replicas that are slow do not call themselves
        sick (Huang et al., Gray Failure, HotOS 2017).

    Args:
        signs: What replicas are looked at for; ``first_tokens`` needs an engine profile.
        max_failures: In a row.
        factor: How many times slower than usual is too slow.
        num_slow: How many that are slower still, by as much again, are enough.
        window_s: How long a value counts.
        allowance_s: Seconds that are added to what was expected: a short prompt waits for a step that is under way.
        base_s: Seconds that a replica is out the first time.
        max_s: The longest time.
        max_fraction: Of a pool's replicas.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Dispatched, FirstToken, *ATTEMPT_ENDS})

    def __init__(
        self,
        *,
        signs: Sequence[str] = SIGNS,
        max_failures: int = 5,
        factor: float = 2.5,
        num_slow: int = 5,
        window_s: float = 30.0,
        allowance_s: float = 0.05,
        base_s: float = 10.0,
        max_s: float = 300.0,
        max_fraction: float = 0.3,
    ) -> None:
        self._signs = Signs(signs, max_failures, factor, num_slow)
        EJECTION.check_positive("window_s", window_s)
        EJECTION.check_number("allowance_s", allowance_s, 0)
        EJECTION.check_positive("base_s", base_s)
        EJECTION.check_number("max_s", max_s, base_s)
        EJECTION.check_number("max_fraction", max_fraction, 0, 1)
        self._base_s, self._max_s, self._max_fraction = base_s, max_s, max_fraction
        self._records = HealthRecords(window_s, allowance_s)
        self._pools: dict[str, tuple[float, frozenset[str]]] = {}
        if EjectionReason.FIRST_TOKENS not in self._signs.wanted:
            vars(self).update(requires=self.requires - {Need.SERVICE_RATES})  # its own, in the place of the class's

    def observe(self, signal: AttemptSignal) -> None:
        self._records.observe(signal)

    def decide(self, pool: Sequence[ReplicaView], now_s: float) -> Sequence[EjectionDecision]:
        name = pool[0].pool
        looked_at_s, before = self._pools.get(name, (-math.inf, frozenset[str]()))
        if not self._records.has_news and now_s - looked_at_s < LOOK_EVERY_S:
            return ()
        self._records.has_news = False
        up = frozenset(each.replica_id for each in pool)
        self._pools[name] = now_s, up
        self._records.forget(before - up)
        ejections = tuple(self._ejections(self._records.of(pool), len(pool), now_s))
        return (*ejections, *_promotions(self._records.of(pool), now_s))

    def _ejections(self, pool: Mapping[str, Health], num_up: int, now_s: float) -> Iterator[Eject]:
        present = {replica_id: health for replica_id, health in pool.items() if not health.is_out(now_s)}
        room = min(num_up - 1, math.ceil(self._max_fraction * num_up)) - (len(pool) - len(present))
        found = self._signs.standing_out(present, now_s)
        for replica_id in sorted(found, key=lambda each: (-found[each][0], each))[: max(0, room)]:
            health = pool[replica_id]
            is_again = now_s - health.out_until_s < self._max_s
            num_before = health.num_ejections if is_again else 0
            for_s = min(self._max_s, self._base_s * 2.0 ** min(num_before, 64))
            self._records.begin_anew(replica_id, num_before + 1, now_s + for_s)
            yield Eject(replica_id=replica_id, reason=found[replica_id][1], for_s=for_s)


def _promotions(pool: Mapping[str, Health], now_s: float) -> Iterator[Allow]:
    """Newcomers with more good results than before take more."""
    for replica_id, health in pool.items():
        if health.is_newcomer and not health.is_out(now_s) and health.num_good > health.num_good_told:
            health.num_good_told = health.num_good
            health.is_newcomer = health.num_good < NUM_PROBES
            allowed = 2**health.num_good if health.is_newcomer else UNLIMITED_ATTEMPTS
            yield Allow(replica_id=replica_id, max_attempts=allowed)

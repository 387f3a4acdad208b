"""All pools by the work that will have come when a replica that is asked for now is there."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.estimators import Trend
from policies.params import SCALING
from policies.pool_views import PoolView, ScalingView
from policies.scaling.budget import dollars_per_h, shared_out
from policies.scaling.correction import Correction
from policies.scaling.role_changes import with_role_changes
from policies.scaling.stabilization import Stabilization
from policies.signals import Signal
from policies.views import Role

MOST_KV, SHORTEST_DRAIN_S = 0.9, 10.0
WORTH_THE_FIRST, WORTH_THE_LAST = 0.1, 0.05
"""For so much of a replica's work one starts where there was none, and for so much it stays: others serve the rest."""
MOST_GROWTH, MOST_SURGE = 2.0, 10.0
"""Forecasts are no more than so many times what came of late, and with what waits so many times what comes."""


class JointByWork:
    """How many replicas is each pool to have? As many as do the work that will come, of every request's own size.

    Rule: the work that comes in a second, ``load = added_s / period_s``, is forecast over the time that a replica takes
        to start, ``deviations`` of its noise above its trend, and what waits is worked off meanwhile. Since steps take
        ``step_s`` anyway, ``n`` replicas are busy for ``load / n`` of their time, and a token takes ``step_s / (1 -
        load / n)``. That is to be ``tpot_s`` at the most, with ``most_busy_fraction`` of the time busy; and by Little's
        law ``output_tokens * step_s / (n - load)`` decode at each, and ``held_tokens * step_s / (n - load)`` are held,
        which have to fit, with a Poisson's standard deviation of sequences more. With ``warm_replicas``
        it looks ahead for as long as those take to wake up, and for a whole start to what they will not do. Where all
        pools would cost more than ``most_dollars_per_h``, replicas go one by one to the pool in which most requests for
        the price would be late without. Fewer, with ``spare_fraction`` and ``spare_deviations`` to spare, when that was
        so for ``down_after_s``, one at a time; at once, where replicas change roles and the other side of the handoff
        is short of some. A pool that may have none gets its first for a tenth of a replica's work.
        The whole is times a correction: a pool that had all of this and was late with more than ``most_late_fraction``
        of its requests gets more (:mod:`policies.scaling.correction`).
    State: a trend of each pool's load; what was wanted of late; corrections.
    Consumes: nothing.
    Complexity: O(pools), and O(replicas * pools) short of money.
    Failure mode: as good as expected lengths and the engine profile, until lateness has corrected them, replica by
        replica. A crowd that comes within a start time is late, as with every policy that sees it when it comes.
    Source: the fluid of :mod:`loadtests.plan`; Holt's trend; DistServe (OSDI 2024) for pools sized by their own SLOs.

    Args:
        tpot_s: SLO of the time per token; 0: none.
        most_busy_fraction: Most of its time that prompts and answers may take of a replica.
        deviations: How far above the forecast, in standard deviations of its errors.
        level_memory_s: After which a load counts for little.
        trend_memory_s: The same for how fast it changes.
        down_after_s: How long fewer must be enough.
        spare_fraction: With fewer replicas than there are, so much must be to spare.
        spare_deviations: And so many standard deviations of the load's level, so that noise brings none back.
        most_dollars_per_h: What all pools' replicas may cost together, by ``pools[].dollars_per_h``; where no price is
            given a replica costs 1, so it is how many there may be. 0: as many as pools want.
        most_late_fraction: So many requests may be late before a pool gets more than its work takes; 1: it never does.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        tpot_s: float = 0.0,
        most_busy_fraction: float = 1.0,
        deviations: float = 0.0,
        level_memory_s: float = 20.0,
        trend_memory_s: float = 120.0,
        down_after_s: float = 30.0,
        spare_fraction: float = 0.05,
        spare_deviations: float = 2.5,
        most_dollars_per_h: float = 0.0,
        most_late_fraction: float = 0.02,
    ) -> None:
        SCALING.check_number("tpot_s", tpot_s, 0.0)
        SCALING.check_number("most_busy_fraction", most_busy_fraction, 0.01, 1.0)
        SCALING.check_number("deviations", deviations, 0.0)
        SCALING.check_positive("level_memory_s", level_memory_s)
        SCALING.check_positive("trend_memory_s", trend_memory_s)
        SCALING.check_number("down_after_s", down_after_s, 0.0)
        SCALING.check_number("spare_fraction", spare_fraction, 0.0)
        SCALING.check_number("spare_deviations", spare_deviations, 0.0)
        SCALING.check_number("most_dollars_per_h", most_dollars_per_h, 0.0)
        SCALING.check_number("most_late_fraction", most_late_fraction, 0.0, 1.0)
        self._tpot_s = tpot_s
        self._most_busy_fraction = most_busy_fraction
        self._deviations = deviations
        self._memories_s = level_memory_s, trend_memory_s
        self._stable = Stabilization(down_after_s)
        self._spare_fraction = spare_fraction
        self._spare_deviations = spare_deviations
        self._most_dollars_per_h = most_dollars_per_h
        self._correction = Correction(most_late_fraction)
        self._loads: dict[str, Trend] = {}
        self._wanted: dict[str, int] = {}

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        exact = {name: self._replicas(name, pool, view.period_s, now_s) for name, pool in view.pools.items()}
        self._wanted = wanted = {name: self._whole(name, its, view.pools[name]) for name, its in exact.items()}
        if self._most_dollars_per_h and dollars_per_h(wanted, view) > self._most_dollars_per_h:
            wanted = shared_out(view, exact, self._most_dollars_per_h)
        stable = {name: self._stable.at(name, its, now_s) for name, its in wanted.items()}
        slow = {name: max(its, view.pools[name].num_replicas - 1) for name, its in stable.items()}
        targets = with_role_changes(slow, wanted, view.pools)
        self._stable.forget_above(targets)
        return targets

    def _replicas(self, name: str, pool: PoolView, period_s: float, now_s: float) -> float:
        load = self._loads.setdefault(name, Trend(*self._memories_s))
        load.add(pool.demand.added_s / period_s, period_s)
        at_start, awake = (self._replicas_in(ready_s, pool, load, period_s) for ready_s in (pool.start_s, pool.wake_s))
        wanted = max(at_start, self._wanted.get(name, 0))
        times = self._correction.factor(name, pool, wanted, now_s, period_s)
        return max(times * at_start - pool.warm_replicas, times * awake) if pool.warm_replicas else times * at_start

    def _replicas_in(self, ready_s: float, pool: PoolView, load: Trend, period_s: float) -> float:
        """As many as it takes when a replica that becomes ready in so long will be there."""
        demand = pool.demand
        level = max(load.level, 1e-9)  # after a steep fall the mean of what it was may be below nothing
        coming = max(0.0, min(load.after(ready_s + period_s, self._deviations), MOST_GROWTH * level))
        coming += pool.waiting_s / max(SHORTEST_DRAIN_S, ready_s)
        wanted = coming / self._busy_fraction(pool)
        if pool.role is not Role.PREFILL and demand.added_s:
            steps_s = pool.step_s / period_s * min(MOST_SURGE, coming * period_s / demand.added_s)
            sequences = demand.output_tokens * steps_s
            slots = (sequences + math.sqrt(sequences)) / pool.max_num_seqs
            wanted = max(
                wanted, coming + slots, coming + demand.held_tokens * steps_s / (MOST_KV * pool.kv_capacity_tokens)
            )
        return min(float(pool.max_replicas), wanted)

    def _whole(self, name: str, exact: float, pool: PoolView) -> int:
        """Fewer than there are only with something to spare."""
        if not pool.min_replicas and exact < (WORTH_THE_LAST if pool.num_replicas else WORTH_THE_FIRST):
            return 0
        noise = self._spare_deviations * self._loads[name].level_deviation / self._busy_fraction(pool)
        with_spare = math.ceil(exact * (1.0 + self._spare_fraction) + noise)
        return max(pool.min_replicas, math.ceil(exact), min(pool.num_replicas, with_spare))

    def _busy_fraction(self, pool: PoolView) -> float:
        if not self._tpot_s or pool.role is Role.PREFILL:
            return self._most_busy_fraction
        return max(0.01, min(self._most_busy_fraction, 1.0 - pool.step_s / self._tpot_s))

"""From what all gateways have for the pools to how many replicas each is to have: the same in every host."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.scaled_pools import PoolSize, ScaledPool, role_pairs
from cluster.seeds import Seeds
from policies.catalog import build_scaling
from policies.contracts import Need, ScalingPolicy
from policies.pool_views import Demand, PoolLoad, PoolView, ScalingView
from routing.config.spec import DispatcherSpec

SILENT_S = 10.0
"""A gateway that has said nothing for so long is gone."""


class Replicas(Protocol):
    """What a host does about the pools that a scaler sees."""

    def size(self, pool: str) -> PoolSize:
        """What a pool has."""
        ...

    def resize(self, pool: str, num_replicas: int, now_s: float) -> None:
        """A pool is to have so many in service: more wake up or begin to start, or some take no more requests, and are
        warm or go when they have none.

        Those that are warm come first, and those that start go first.
        """
        ...

    def change_roles(self, pool: str, other: str, number: int, now_s: float) -> None:
        """So many replicas of a pool take no more requests, and are the other one's when they have none."""
        ...


def scaling_policy(spec: DispatcherSpec, provided: frozenset[Need], seed: int) -> ScalingPolicy:
    """The policy that a spec names.

    Args:
        spec: What gateways' dispatchers are made from.
        provided: What the host can supply policies with, wherever it knows how fast engines are.
        seed: Of its random stream.

    Raises:
        ConfigError: It does not exist, or its parameters or needs don't fit.
    """
    has = provided if spec.rates.are_known else provided - {Need.SERVICE_RATES}
    return build_scaling(spec.policies, rng_for=Seeds(seed).stream, provided=has)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a gateway has said last, when, and what of its demand policies have been shown."""

    loads: Mapping[str, PoolLoad]
    at_s: float
    shown: Mapping[str, Demand]


class Scaler:
    """Asks a policy what it wants, keeps to what pools may have, and has their sizes changed.

    Args:
        policy: Says how many replicas there are to be.
        pools: Those whose size may change, by name.
        replicas: Starts and drains them.
        now_s: Now.

    Raises:
        ConfigError: Pools whose replicas are to change roles do not fit together.
    """

    def __init__(
        self, policy: ScalingPolicy, pools: Mapping[str, ScaledPool], replicas: Replicas, now_s: float = 0.0
    ) -> None:
        self._policy = policy
        self._pools = pools
        self._role_pairs = role_pairs(pools)
        self._replicas = replicas
        self._heard: dict[str, _Heard] = {}
        self._asked_at_s = now_s

    def hear(self, gateway: str, loads: Mapping[str, PoolLoad], now_s: float) -> None:
        """What a gateway has for the pools. Its first word is what its demand is counted from.

        Args:
            gateway: Its name; one that starts anew has another.
            loads: By pool.
            now_s: Now.
        """
        before = self._heard.get(gateway)
        shown = {name: load.demand for name, load in loads.items()} if before is None else before.shown
        self._heard[gateway] = _Heard(loads, now_s, shown)

    def look(self, now_s: float) -> None:
        """Once in a period. Where no gateway is heard of, nobody knows better than to leave all as it is."""
        self._heard = {name: each for name, each in self._heard.items() if now_s - each.at_s <= SILENT_S}
        sizes = {name: self._replicas.size(name) for name in self._pools}
        pools = {name: self._view(name, size) for name, size in sizes.items()}
        view = ScalingView(pools=pools, period_s=now_s - self._asked_at_s)
        self._asked_at_s = now_s
        if not self._heard:
            return
        self._heard = {
            name: replace(each, shown={pool: load.demand for pool, load in each.loads.items()})
            for name, each in self._heard.items()
        }
        targets = self._policy.targets(view, now_s)
        allowed = {
            name: min(max(targets[name], pool.min_replicas), pool.max_replicas)
            for name, pool in pools.items()
            if name in targets
        }
        self._change_roles(allowed, pools, now_s)
        for name, number in allowed.items():
            if number != self._replicas.size(name).num_replicas:
                self._replicas.resize(name, number, now_s)

    def _change_roles(self, allowed: Mapping[str, int], pools: Mapping[str, PoolView], now_s: float) -> None:
        """What one side of the handoff has too many of, the other one gets in the place of starts."""
        for name, other in self._role_pairs.items():
            to_spare = pools[name].num_ready - allowed.get(name, pools[name].num_ready)
            short = allowed.get(other, 0) - pools[other].num_ready - pools[other].num_changing
            number = min(to_spare, short)
            if number > 0:
                self._replicas.change_roles(name, other, number, now_s)

    def _view(self, name: str, size: PoolSize) -> PoolView:
        pool, heard = self._pools[name], self._heard.values()
        loads = [each.loads.get(name, PoolLoad()) for each in heard]
        asked = (each.loads.get(name, PoolLoad()).demand.since(each.shown.get(name, Demand())) for each in heard)
        return PoolView(
            role=pool.role,
            num_ready=size.num_ready,
            num_starting=size.num_starting,
            num_draining=size.num_draining,
            num_warm=size.num_warm,
            num_changing=size.num_changing,
            min_replicas=pool.autoscaling.min_replicas,
            max_replicas=pool.autoscaling.max_replicas,
            warm_replicas=pool.autoscaling.warm_replicas,
            changes_roles=pool.autoscaling.changes_roles,
            start_s=size.start_s or pool.start_s,
            wake_s=pool.wake_s,
            dollars_per_h=pool.dollars_per_h,
            step_s=pool.step_s,
            demand=sum(asked, start=Demand()),
            num_waiting=sum(each.num_waiting for each in loads),
            waiting_s=sum(each.waiting_s for each in loads),
            oldest_wait_s=max((each.oldest_wait_s for each in loads), default=0.0),
            num_ongoing=sum(each.num_ongoing for each in loads),
            max_ongoing_requests=pool.max_ongoing_requests,
            max_num_seqs=pool.max_num_seqs,
            kv_tokens=sum(each.kv_tokens for each in loads),
            kv_capacity_tokens=max((each.kv_capacity_tokens for each in loads), default=0) or pool.kv_capacity_tokens,
        )

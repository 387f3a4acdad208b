"""From what all gateways have for the pools to how many replicas each is to have: the same in every host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.contracts import ScalingPolicy
from policies.pool_views import Demand, PoolLoad, PoolView, ScalingView
from policies.views import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPool:
    """A pool whose size may change.

    Args:
        role: What its replicas do.
        min_replicas: The fewest that it may have.
        max_replicas: The most.
        start_s: How long a replica takes to start.
        step_s: What a step of its engines takes anyway.
        max_ongoing_requests: Requests that a replica takes.
        kv_capacity_tokens: KV tokens that a replica holds.
    """

    role: Role
    min_replicas: int
    max_replicas: int
    start_s: float
    step_s: float
    max_ongoing_requests: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """Replicas of a pool: that take requests, that start, and that finish what they have."""

    num_ready: int
    num_starting: int
    num_draining: int


class Replicas(Protocol):
    """What a host does about the pools that a scaler sees."""

    def size(self, pool: str) -> PoolSize:
        """What a pool has."""
        ...

    def start(self, pool: str, now_s: float) -> None:
        """One more replica of a pool begins to start."""
        ...

    def drain(self, pool: str, now_s: float) -> None:
        """One of a pool's replicas takes no more requests, and goes when it has none; one that starts goes first."""
        ...


class Scaler:
    """Asks a policy what it wants, keeps to what pools may have, and has replicas started and drained.

    Args:
        policy: Says how many replicas there are to be.
        pools: Those whose size may change, by name.
        replicas: Starts and drains them.
    """

    def __init__(self, policy: ScalingPolicy, pools: Mapping[str, ScaledPool], replicas: Replicas) -> None:
        self._policy = policy
        self._pools = pools
        self._replicas = replicas
        self._seen: dict[str, Demand] = {}
        self._asked_at_s = 0.0

    def look(self, loads: Sequence[Mapping[str, PoolLoad]], now_s: float) -> None:
        """Once in a period.

        Args:
            loads: What each gateway has for the pools.
            now_s: Now.
        """
        sizes = {name: self._replicas.size(name) for name in self._pools}
        pools = {
            name: self._view(name, size, [each.get(name, PoolLoad()) for each in loads]) for name, size in sizes.items()
        }
        view = ScalingView(pools=pools, period_s=now_s - self._asked_at_s)
        self._asked_at_s = now_s
        for name, wanted in self._policy.targets(view, now_s).items():
            if name in pools:
                self._resize(name, pools[name], wanted, now_s)

    def _resize(self, name: str, pool: PoolView, wanted: int, now_s: float) -> None:
        missing = min(max(wanted, pool.min_replicas), pool.max_replicas) - pool.num_replicas
        for _ in range(missing):
            self._replicas.start(name, now_s)
        for _ in range(-missing):
            self._replicas.drain(name, now_s)

    def _view(self, name: str, size: PoolSize, loads: Sequence[PoolLoad]) -> PoolView:
        pool, asked = self._pools[name], sum((each.demand for each in loads), start=Demand())
        demand = asked.since(self._seen.get(name, Demand()))
        self._seen[name] = asked
        return PoolView(
            role=pool.role,
            num_ready=size.num_ready,
            num_starting=size.num_starting,
            num_draining=size.num_draining,
            min_replicas=pool.min_replicas,
            max_replicas=pool.max_replicas,
            start_s=pool.start_s,
            step_s=pool.step_s,
            demand=demand,
            num_waiting=sum(each.num_waiting for each in loads),
            waiting_s=sum(each.waiting_s for each in loads),
            oldest_wait_s=max((each.oldest_wait_s for each in loads), default=0.0),
            num_ongoing=sum(each.num_ongoing for each in loads),
            max_ongoing_requests=pool.max_ongoing_requests,
            kv_tokens=sum(each.kv_tokens for each in loads),
            kv_capacity_tokens=pool.kv_capacity_tokens,
        )

"""Pools whose size may change: between what bounds, what they have, and what serves in the place of none."""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.errors import ConfigError
from policies.views import Role
from routing.lanes.access import LaneAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Between how many replicas a pool's size may change.

    Args:
        min_replicas: The fewest; 0 where other pools serve what comes meanwhile.
        max_replicas: The most, those that are warm included.
        warm_replicas: How many more have started and take no requests, as far as ``max_replicas`` has room for them:
            they are asleep where the engine can sleep, else idle.
        changes_roles: Whether its replicas and those of the other side of the handoff may change roles: one that is
            needed more on the other side finishes what it has and serves there, without a start.

    Raises:
        ConfigError: There is no number between them, fewer than none are to be warm, or replicas that change roles are
            to be warm, too.
    """

    min_replicas: int
    max_replicas: int
    warm_replicas: int = 0
    changes_roles: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ConfigError("min_replicas", self.min_replicas, f"0 to max_replicas, which is {self.max_replicas}")
        if self.max_replicas < 1:
            raise ConfigError("max_replicas", self.max_replicas, "1 or more")
        if self.warm_replicas < 0:
            raise ConfigError("warm_replicas", self.warm_replicas, "0 or more")
        if self.changes_roles and self.warm_replicas:
            raise ConfigError("warm_replicas", self.warm_replicas, "0 with changes_roles: those of the other side are")

    def num_warm(self, num_replicas: int) -> int:
        """How many are warm beside so many in service."""
        return min(self.warm_replicas, self.max_replicas - num_replicas)

    def allows(self, replicas: int) -> bool:
        """Whether a pool may have so many."""
        return self.min_replicas <= replicas <= self.max_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPool:
    """A pool whose size may change.

    Args:
        role: What its replicas do.
        autoscaling: Between how many its size may change.
        start_s: How long a replica takes to start, until one has been seen to.
        wake_s: How long one takes that is warm.
        dollars_per_h: What one costs.
        step_s: What a step of its engines takes anyway, for each token that it gives a sequence.
        max_ongoing_requests: Requests that a replica takes.
        max_num_seqs: Sequences of theirs that a step has.
        kv_capacity_tokens: KV tokens that a replica holds, until one has said so itself.
    """

    role: Role
    autoscaling: Autoscaling
    start_s: float
    wake_s: float = 0.0
    dollars_per_h: float = 1.0
    step_s: float
    max_ongoing_requests: int
    max_num_seqs: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """What a pool has.

    Args:
        num_ready: Replicas that take requests.
        num_starting: Replicas that start, wake up or change their role, and will.
        num_draining: Replicas that finish what they have, and go.
        num_warm: Replicas that take no requests until they are woken up, those that finish what they have included.
        num_changing: Of those that start, the ones that had another role and finish what they have of it.
        start_s: How long a replica has taken to start of late; 0 where nobody knows.
    """

    num_ready: int
    num_starting: int
    num_draining: int
    num_warm: int = 0
    num_changing: int = 0
    start_s: float = 0.0

    @property
    def num_replicas(self) -> int:
        """Replicas that are or will be in service."""
        return self.num_ready + self.num_starting


def starting_to_serve(num_starting: int, num_warm: int, wanted_warm: int) -> int:
    """Of a pool's replicas that start, those that will take requests: the others make up the number of warm ones."""
    return num_starting - min(num_starting, max(0, wanted_warm - num_warm))


def role_pairs(pools: Mapping[str, ScaledPool]) -> Mapping[str, str]:
    """The pools whose replicas change roles, each with the one whose role those may have; none where none do.

    Raises:
        ConfigError: They are not one of each side of the handoff, or their replicas are not alike.
    """
    changing = {name: pool for name, pool in pools.items() if pool.autoscaling.changes_roles}
    if not changing:
        return {}
    sides = sorted(pool.role.value for pool in changing.values())
    if sides != [Role.DECODE.value, Role.PREFILL.value]:
        allowed = "true in one prefill and one decode pool, or in none"
        raise ConfigError("pools.autoscaling.changes_roles", list(changing), allowed)
    first, second = changing
    if changing[first].max_ongoing_requests != changing[second].max_ongoing_requests:
        allowed = f"{changing[first].max_num_seqs}, as in pool {first}: replicas that change roles are alike"
        raise ConfigError(f"pools.{second}.max_num_seqs", changing[second].max_num_seqs, allowed)
    return {first: second, second: first}


def check_fallbacks(pools: Mapping[str, ScaledPool], access: LaneAccess) -> None:
    """Whether other pools serve what comes for a pool that may have no replica.

    Args:
        pools: Those whose size may change.
        access: Which pools each lane has.

    Raises:
        ConfigError: None does, or only those that may have no replica either.
    """
    for name, pool in pools.items():
        for others in access.instead_of(name) if pool.autoscaling.min_replicas == 0 else ():
            if not any(each not in pools or pools[each].autoscaling.min_replicas for each in others):
                allowed = "1 or more, unless its lanes borrow from lanes with another pool that always has a replica"
                raise ConfigError(f"pools.{name}.autoscaling.min_replicas", 0, allowed)

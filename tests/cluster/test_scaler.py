"""What a scaling policy is shown of several gateways, and what becomes of what it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cluster.scaler import PoolSize, ScaledPool, Scaler
from policies.contracts import Need
from policies.pool_views import Demand, PoolLoad, ScalingView
from policies.signals import Signal
from policies.views import Role
from tests.tables import for_each

POOL = ScaledPool(
    role=Role.DECODE,
    min_replicas=1,
    max_replicas=5,
    start_s=35.0,
    step_s=0.006,
    max_ongoing_requests=64,
    kv_capacity_tokens=400_000,
)


@dataclass
class Wants:
    """Wants what it is told to, and remembers what it was shown."""

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    wanted: Mapping[str, int] = field(default_factory=dict)
    shown: list[ScalingView] = field(default_factory=list)

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        self.shown.append(view)
        return self.wanted


@dataclass
class Pools:
    """Pools of one size, and what is done to them."""

    done: list[str] = field(default_factory=list)

    def size(self, pool: str) -> PoolSize:
        return PoolSize(num_ready=2, num_starting=1, num_draining=1)

    def start(self, pool: str, now_s: float) -> None:
        self.done.append(f"start {pool}")

    def drain(self, pool: str, now_s: float) -> None:
        self.done.append(f"drain {pool}")


def test_a_policy_sees_what_all_gateways_have_and_what_was_asked_since_it_was_asked_last() -> None:
    policy = Wants()
    scaler = Scaler(policy, {"decode": POOL}, Pools())
    load = PoolLoad(demand=Demand(added_s=3.0), num_waiting=2, waiting_s=1.5, oldest_wait_s=4.0, num_ongoing=7)
    later = PoolLoad(demand=Demand(added_s=8.0), num_ongoing=1, kv_tokens=900)

    scaler.look([{"decode": load}, {"decode": load}], 10.0)
    scaler.look([{"decode": later}, {"decode": load}], 30.0)

    first, second = policy.shown
    assert (first.period_s, second.period_s) == (10.0, 20.0)
    seen = first.pools["decode"]
    assert (seen.num_ready, seen.num_starting, seen.num_draining) == (2, 1, 1)
    assert (seen.demand.added_s, seen.num_waiting, seen.waiting_s) == (6.0, 4, 3.0)
    assert (seen.oldest_wait_s, seen.num_ongoing, seen.start_s) == (4.0, 14, 35.0)
    assert second.pools["decode"].demand.added_s == 5.0
    assert second.pools["decode"].kv_tokens == 900


@for_each(
    ("wanted", "done"),
    [
        ({}, []),
        ({"decode": 3}, []),
        ({"decode": 4}, ["start decode"]),
        ({"decode": 40}, ["start decode"] * 2),
        ({"decode": 2}, ["drain decode"]),
        ({"decode": 0}, ["drain decode"] * 2),
        ({"other": 4}, []),
    ],
)
def test_what_is_wanted_is_done_within_the_bounds(wanted: Mapping[str, int], done: list[str]) -> None:
    pools = Pools()
    Scaler(Wants(wanted), {"decode": POOL}, pools).look([], 10.0)
    assert pools.done == done


def test_a_gateway_that_begins_anew_has_not_taken_anything_back() -> None:
    policy = Wants()
    scaler = Scaler(policy, {"decode": POOL}, Pools())
    scaler.look([{"decode": PoolLoad(demand=Demand(added_s=100.0))}], 10.0)
    scaler.look([{"decode": PoolLoad(demand=Demand(added_s=4.0))}], 20.0)
    assert policy.shown[1].pools["decode"].demand.added_s == 0.0

"""What a scaling policy is shown of several gateways, and what becomes of what it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from cluster.scaled_pools import Autoscaling, PoolSize, ScaledPool, check_fallbacks, starting_to_serve
from cluster.scaler import SILENT_S, Scaler
from policies.contracts import Need
from policies.errors import ConfigError
from policies.pool_views import Demand, PoolLoad, ScalingView
from policies.signals import Signal
from policies.views import Role
from routing.lanes.access import LaneAccess
from routing.lanes.lanes import Lane, TokenRange
from tests.tables import for_each

SHORT, LONG = TokenRange(below=2000), TokenRange(at_least=2000)
POOL = ScaledPool(
    role=Role.DECODE,
    autoscaling=Autoscaling(min_replicas=1, max_replicas=5, warm_replicas=2),
    start_s=35.0,
    step_s=0.006,
    max_ongoing_requests=64,
    max_num_seqs=51,
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
    start_s: float = 0.0
    num_ready: dict[str, int] = field(default_factory=dict)
    num_starting: int = 1

    def size(self, pool: str) -> PoolSize:
        num_ready = self.num_ready.get(pool, 2)
        return PoolSize(num_ready=num_ready, num_starting=self.num_starting, num_draining=1, start_s=self.start_s)

    def resize(self, pool: str, num_replicas: int, now_s: float) -> None:
        self.done.append(f"{pool}: {num_replicas}")

    def change_roles(self, pool: str, other: str, number: int, now_s: float) -> None:
        self.done.append(f"{number} of {pool}: {other}")
        self.num_ready[pool] -= number
        self.num_ready[other] += number


def test_a_policy_sees_what_all_gateways_have_and_what_was_asked_since_it_was_asked_last() -> None:
    policy = Wants()
    scaler = Scaler(policy, {"decode": POOL}, Pools())
    load = PoolLoad(demand=Demand(added_s=3.0), num_waiting=2, waiting_s=1.5, oldest_wait_s=4.0, num_ongoing=7)
    later = PoolLoad(demand=Demand(added_s=8.0), num_ongoing=1, kv_tokens=900)

    for gateway in "ab":
        scaler.hear(gateway, {"decode": PoolLoad()}, 0.0)
    for gateway in "ab":
        scaler.hear(gateway, {"decode": load}, 10.0)
    scaler.look(10.0)
    scaler.hear("a", {"decode": later}, 30.0)
    scaler.hear("b", {"decode": load}, 30.0)
    scaler.look(30.0)

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
        ({"decode": 4}, ["decode: 4"]),
        ({"decode": 40}, ["decode: 5"]),
        ({"decode": 2}, ["decode: 2"]),
        ({"decode": 0}, ["decode: 1"]),
        ({"other": 4}, []),
    ],
)
def test_what_is_wanted_is_done_within_the_bounds(wanted: Mapping[str, int], done: list[str]) -> None:
    pools = Pools()
    scaler = Scaler(Wants(wanted), {"decode": POOL}, pools)
    scaler.hear("a", {}, 10.0)
    scaler.look(10.0)
    assert pools.done == done


CHANGING = Autoscaling(min_replicas=1, max_replicas=8, changes_roles=True)
BOTH = {
    "prefill": replace(POOL, role=Role.PREFILL, autoscaling=CHANGING),
    "decode": replace(POOL, role=Role.DECODE, autoscaling=CHANGING),
}


@for_each(
    ("has", "wanted", "done"),
    [
        ((5, 2), (3, 4), ["2 of prefill: decode"]),
        ((5, 2), (2, 4), ["2 of prefill: decode", "prefill: 2"]),
        ((5, 2), (3, 7), ["2 of prefill: decode", "decode: 7"]),
        ((5, 2), (5, 1), ["decode: 1"]),
        ((5, 2), (6, 3), ["prefill: 6", "decode: 3"]),
        ((3, 2), (7, 0), ["1 of decode: prefill", "prefill: 7"]),
    ],
    ids=["as_many", "fewer_in_all", "more_in_all", "fewer", "both_more", "the_last_stays"],
)
def test_what_one_side_of_the_handoff_has_too_many_of_serves_on_the_other(
    has: tuple[int, int], wanted: tuple[int, int], done: list[str]
) -> None:
    pools = Pools(num_ready=dict(zip(BOTH, has, strict=True)), num_starting=0)
    scaler = Scaler(Wants(dict(zip(BOTH, wanted, strict=True))), BOTH, pools)
    scaler.hear("a", {}, 10.0)
    scaler.look(10.0)
    assert pools.done == done


def test_a_role_is_changed_in_the_place_of_a_start_and_one_that_starts_changes_none() -> None:
    pools = Pools(num_ready={"prefill": 3, "decode": 1})
    scaler = Scaler(Wants({"prefill": 2, "decode": 2}), BOTH, pools)
    scaler.hear("a", {}, 10.0)
    scaler.look(10.0)
    assert pools.done == ["1 of prefill: decode", "prefill: 2", "decode: 2"], "one that starts is not needed any more"


@for_each(
    ("pools", "field"),
    [
        ({"decode": BOTH["decode"]}, r"changes_roles: got \['decode'\]"),
        ({**BOTH, "long": BOTH["prefill"]}, "changes_roles"),
        ({"prefill": BOTH["prefill"], "decode": replace(BOTH["decode"], max_ongoing_requests=9)}, "max_num_seqs"),
    ],
    ids=["one_side", "three", "not_alike"],
)
def test_who_changes_roles_is_one_pool_of_each_side_and_alike(pools: Mapping[str, ScaledPool], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Scaler(Wants(), pools, Pools())
    with pytest.raises(ConfigError, match="warm_replicas"):
        replace(CHANGING, warm_replicas=1)


def test_the_demand_of_a_gateway_counts_from_its_first_word() -> None:
    policy = Wants()
    scaler = Scaler(policy, {"decode": POOL}, Pools(), 10.0)
    scaler.hear("a", _asked(100.0), 11.0)
    scaler.hear("a", _asked(104.0), 19.0)
    scaler.hear("b", _asked(1000.0), 19.5)
    scaler.look(20.0)
    assert policy.shown[0].period_s == 10.0
    assert policy.shown[0].pools["decode"].demand.added_s == 4.0


def test_a_gateway_that_goes_takes_nothing_from_what_others_were_asked() -> None:
    policy = Wants()
    scaler = Scaler(policy, {"decode": POOL}, Pools())
    for at_s, a_asked_s in ((0.0, 0.0), (10.0, 50.0)):
        scaler.hear("a", _asked(a_asked_s), at_s)
        scaler.hear("b", _asked(a_asked_s / 5), at_s)
    scaler.look(10.0)
    scaler.hear("b", _asked(17.0), 30.0)
    scaler.look(30.0)
    assert [each.pools["decode"].demand.added_s for each in policy.shown] == [60.0, 7.0]


def test_a_replica_takes_as_long_to_start_as_the_last_ones_did() -> None:
    policy, pools = Wants(), Pools(start_s=80.0)
    scaler = Scaler(policy, {"decode": POOL}, pools)
    scaler.hear("a", {}, 10.0)
    scaler.look(10.0)
    assert policy.shown[0].pools["decode"].start_s == 80.0


def test_where_no_gateway_is_heard_of_everything_stays_as_it_is() -> None:
    policy, pools = Wants({"decode": 1}), Pools()
    scaler = Scaler(policy, {"decode": POOL}, pools)
    scaler.look(10.0)
    scaler.hear("a", _asked(5.0), 10.0)
    scaler.look(10.0 + 2 * SILENT_S)
    assert not policy.shown
    assert not pools.done


@for_each("case", [(0, 2, 0), (1, 2, 1), (1, 1, 0), (3, 0, 1), (1, 0, 0), (2, 5, 2)])
def test_of_replicas_that_start_those_serve_that_are_not_missing_among_the_warm(case: tuple[int, int, int]) -> None:
    num_starting, num_warm, to_serve = case
    assert starting_to_serve(num_starting, num_warm, wanted_warm=2) == to_serve


def test_no_more_are_warm_than_there_is_room_for() -> None:
    assert [POOL.autoscaling.num_warm(number) for number in (1, 3, 4, 5)] == [2, 2, 1, 0]


def lanes(*, borrows: bool) -> LaneAccess:
    short = Lane(name="short", pools=("decode",), borrows_from=("long",) if borrows else (), prompt_tokens=SHORT)
    long = Lane(name="long", pools=("other",), prompt_tokens=LONG)
    return LaneAccess([short, long], {"decode": Role.DECODE, "other": Role.DECODE})


def test_a_pool_may_have_no_replica_where_another_that_has_one_serves_its_lanes() -> None:
    none = replace(POOL, autoscaling=Autoscaling(min_replicas=0, max_replicas=5))
    check_fallbacks({"decode": none}, lanes(borrows=True))
    check_fallbacks({"decode": none, "other": POOL}, lanes(borrows=True))
    for pools, access in (
        ({"decode": none}, lanes(borrows=False)),
        ({"decode": none, "other": none}, lanes(borrows=True)),
        ({"other": none}, lanes(borrows=True)),
    ):
        with pytest.raises(ConfigError, match=r"autoscaling\.min_replicas: got 0; allowed: 1 or more, unless"):
            check_fallbacks(pools, access)


def _asked(added_s: float) -> Mapping[str, PoolLoad]:
    return {"decode": PoolLoad(demand=Demand(added_s=added_s))}

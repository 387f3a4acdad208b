"""Pools whose size changes while requests are under way: nothing is lost, and every second of a replica is counted."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster.scaled_pools import Autoscaling
from cluster.sim.faults import Fault
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from engines.faults import FaultKind
from policies.catalog import PolicyChoice
from policies.errors import ConfigError
from policies.views import Role
from routing.config.spec import DispatcherSpec
from routing.request.events import FleetChanged
from tests.cluster.simulated import PlainTraffic, dispatcher, fleet, poisson, request
from tests.tables import for_each

SCHEDULED = f"{__name__}:Stepwise"
UP_TO_SIX = Autoscaling(min_replicas=1, max_replicas=6)


@dataclass
class Stepwise:
    """Wants so many replicas of every pool from so many seconds on."""

    steps: list[tuple[float, int]]
    requires: frozenset[Any] = frozenset()
    consumes: frozenset[Any] = frozenset()

    def targets(self, view: Any, now_s: float) -> dict[str, int]:
        wanted = [number for at_s, number in self.steps if at_s <= now_s]
        return dict.fromkeys(view.pools, wanted[-1]) if wanted else {}


def scaled(
    steps: list[tuple[float, int]], replicas: int = 2, *, apart: bool = False, **more: Any
) -> tuple[FleetSpec, DispatcherSpec]:
    spec = fleet(replicas, is_disaggregated=apart, scaling_period_s=1.0, **more)
    pools = tuple(replace(pool, autoscaling=UP_TO_SIX, start_s=3.0) for pool in spec.pools)
    spec = replace(spec, pools=pools)
    decides = dispatcher(spec)
    scaling = PolicyChoice(name=SCHEDULED, params={"steps": steps})
    return spec, replace(decides, policies=replace(decides.policies, scaling=scaling))


def lives(table: RunTable, role: str = "unified") -> dict[str, tuple[float, float]]:
    """Seconds that each replica of a role was up, and held."""
    found = {each.replica_id: (each.up_s, each.held_s) for each in table.replicas if each.role == role}
    return {name: (round(up_s, 2), round(held_s, 2)) for name, (up_s, held_s) in found.items()}


def steady(until_s: int, every_s: float = 0.05) -> PlainTraffic:
    return PlainTraffic([request(number, number * every_s) for number in range(int(until_s / every_s))])


def test_a_replica_takes_requests_when_it_has_started_and_is_counted_from_when_it_was_asked_for() -> None:
    spec, decides = scaled([(5.0, 3)], replicas=1)
    traffic = steady(20, every_s=0.02)
    table = simulate(spec, decides, traffic, ["all"], seed=1)
    end_s = max(at_s for _, _, at_s in traffic.ended)
    assert lives(table) == {
        "unified-0000.0": (round(end_s, 2), round(end_s, 2)),
        "unified-0001.0": (round(end_s - 8.0, 2), round(end_s - 5.0, 2)),
        "unified-0002.0": (round(end_s - 8.0, 2), round(end_s - 5.0, 2)),
    }
    assert min(each.attempts for each in table.replicas) > 0


@for_each("apart", [False, True], ids=["unified", "prefill_decode"])
@for_each("num_gateways", [1, 3])
def test_whatever_the_size_does_no_request_is_lost_and_none_has_to_be_repeated(apart: bool, num_gateways: int) -> None:
    steps = [(2.0, 5), (8.0, 1), (14.0, 4), (15.0, 2), (16.0, 6), (25.0, 1)]
    spec, decides = scaled(steps, replicas=2, apart=apart, num_gateways=num_gateways)
    traffic = poisson(900, rate_per_s=25.0, seed=3)

    table = simulate(spec, decides, traffic, ["all"], seed=3)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert sorted(table.logical_request) == list(range(900))
    wanted = {arrival.request.logical_request: arrival.request.output_tokens for arrival in traffic.plan}
    assert dict(zip(table.logical_request.tolist(), table.output_tokens.tolist(), strict=True)) == wanted
    assert set(table.attempts) == ({2} if apart else {1})
    assert sum(each.prompt_tokens for each in table.replicas) >= sum(
        each.request.prompt_tokens for each in traffic.plan
    )


def test_a_replica_that_drains_finishes_what_it_has_takes_no_more_and_is_gone() -> None:
    spec, decides = scaled([(5.0, 1)], replicas=2)
    long = [request(0, 4.9, output_tokens=200), request(1, 4.9, output_tokens=200)]
    later = [request(number, 5.5 + number * 0.1) for number in range(2, 100)]
    table = simulate(spec, decides, PlainTraffic([*long, *later]), ["all"], seed=1)
    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    gone = next(each for each in table.replicas if each.attempts == 1)
    ended_s = float(table.end_s[table.logical_request < 2].max())
    assert ended_s - 0.5 <= gone.up_s <= ended_s + 1.0


def test_a_replica_that_is_not_wanted_any_more_before_it_has_started_never_serves() -> None:
    spec, decides = scaled([(5.0, 2), (7.0, 1)], replicas=1)
    table = simulate(spec, decides, steady(15), ["all"], seed=1)
    assert lives(table)["unified-0001.0"] == (0.0, 2.0)


def test_bounds_are_kept_and_the_last_replica_stays() -> None:
    spec, decides = scaled([(2.0, 40), (10.0, 0)], replicas=2)
    table = simulate(spec, decides, steady(20), ["all"], seed=1)
    assert len(table.replicas) == 6
    still_there = [up_s for up_s, _ in lives(table).values() if up_s > 19.0]
    assert len(still_there) == 1
    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}


def test_a_place_whose_replica_has_crashed_counts_as_one_that_starts() -> None:
    spec, decides = scaled([(0.0, 2)], replicas=2)
    crash = Fault(kind=FaultKind.CRASH, at_s=4.0, for_s=1.0, role=Role.UNIFIED, replica=0)
    table = simulate(spec, decides, steady(20), ["all"], seed=1, faults=[crash])
    assert sorted(lives(table)) == ["unified-0000.0", "unified-0000.1", "unified-0001.0"]


def test_a_replica_that_crashes_while_it_drains_is_not_replaced() -> None:
    spec, decides = scaled([(5.0, 1)], replicas=2)
    long = [request(number, 4.9, output_tokens=250) for number in range(2)]
    crash = [Fault(kind=FaultKind.CRASH, at_s=5.2, for_s=1.0, role=Role.UNIFIED, replica=number) for number in range(2)]
    table = simulate(spec, decides, PlainTraffic([*long, request(2, 15.0)]), ["all"], seed=1, faults=crash)
    assert len(table.replicas) == 3, "the one that was not draining comes back"


def test_the_same_seed_gives_the_same_run() -> None:
    spec, decides = scaled([(2.0, 5), (8.0, 1), (12.0, 4)], apart=True, num_gateways=2)
    one, other = (simulate(spec, decides, poisson(500, 25.0, seed=4), ["all"], seed=9) for _ in range(2))
    assert (one.end_s == other.end_s).all()
    assert np.array_equal(one.attempts, other.attempts)
    assert lives(one, "decode") == lives(other, "decode")


def turns(sizes: list[int]) -> int:
    """How often a size that grew shrinks, or the other way round."""
    changes = [after - before for before, after in itertools.pairwise(sizes) if after != before]
    return sum(one * other < 0 for one, other in itertools.pairwise(changes))


@for_each("seed", [1, 2, 3])
def test_under_a_steady_load_pools_hardly_change_their_size(seed: int) -> None:
    spec, decides = scaled([], replicas=1, apart=True)
    by_work = PolicyChoice(name="joint_by_work", params={"tpot_s": 0.02})
    decides = replace(decides, policies=replace(decides.policies, scaling=by_work))
    sizes: dict[str, list[int]] = {"prefill": [], "decode": []}

    def note(_: int, now_s: float, event: Any, __: Any) -> None:
        if isinstance(event, FleetChanged) and now_s > 200.0:
            sizes[event.pool].append(len(event.replicas))

    traffic = poisson(8000, rate_per_s=10.0, seed=seed)
    table = simulate(spec, decides, traffic, ["all"], seed=seed, on_event=note)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert table.end_s.max() > 790.0
    assert all(turns(each) <= 2 for each in sizes.values()), sizes


def test_a_pool_without_autoscaling_keeps_its_size() -> None:
    spec, decides = scaled([(1.0, 5)], apart=True)
    fixed = replace(spec, pools=(spec.pools[0], replace(spec.pools[1], autoscaling=None)))
    table = simulate(fixed, decides, steady(12), ["all"], seed=1)
    assert len(lives(table, "prefill")) == 5
    assert len(lives(table, "decode")) == 2


def test_a_pool_that_nobody_stands_in_for_keeps_a_replica() -> None:
    spec, decides = scaled([(1.0, 5)])
    bounds = Autoscaling(min_replicas=0, max_replicas=6)
    spec = replace(spec, pools=tuple(replace(pool, autoscaling=bounds) for pool in spec.pools))
    with pytest.raises(ConfigError, match=r"pools\.unified\.autoscaling\.min_replicas: got 0"):
        simulate(spec, decides, steady(2), ["all"], seed=1)


def test_a_size_that_autoscaling_does_not_allow_is_refused() -> None:
    spec = fleet(8)
    with pytest.raises(ConfigError, match="replicas"):
        replace(spec.pools[0], autoscaling=UP_TO_SIX)
    with pytest.raises(ConfigError, match="min_replicas"):
        Autoscaling(min_replicas=3, max_replicas=2)


def warm(steps: list[tuple[float, int]], *, num_warm: int = 1, wake_s: float = 0.5, **more: Any) -> tuple[Any, Any]:
    """The same with warm replicas, which wake up in ``wake_s``."""
    spec, decides = scaled(steps, **more)
    bounds = replace(UP_TO_SIX, warm_replicas=num_warm)
    pools = tuple(
        replace(pool, autoscaling=bounds, profile=msgspec.structs.replace(pool.profile, wake_s=wake_s))
        for pool in spec.pools
    )
    return replace(spec, pools=pools), decides


def test_a_warm_replica_serves_as_soon_as_it_is_awake_and_another_one_starts_in_its_place() -> None:
    spec, decides = warm([(5.0, 2)], replicas=1)

    table = simulate(spec, decides, steady(20, every_s=0.02), ["all"], seed=1)

    end_s = table.end_s.max()
    warm_s = {each.replica_id: round(each.warm_s, 2) for each in table.replicas}
    assert list(lives(table)) == ["unified-0000.0", "unified-0001.0", "unified-0002.0"]
    assert warm_s["unified-0001.0"] == 5.5
    assert lives(table)["unified-0002.0"][1] == pytest.approx(end_s - 5.0, abs=0.01)
    assert warm_s["unified-0002.0"] == pytest.approx(end_s - 9.0, abs=1.1), "it is ready after 3 s, and idle soon after"
    assert {each.replica_id: each.attempts > 0 for each in table.replicas}["unified-0001.0"]


def test_a_replica_that_is_not_needed_finishes_what_it_has_and_is_warm_then() -> None:
    spec, decides = warm([(2.0, 2), (8.0, 1)], replicas=1)

    table = simulate(spec, decides, steady(20, every_s=0.02), ["all"], seed=1)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert set(table.attempts) == {1}
    gone = {each.replica_id: each.gone_s for each in table.replicas if each.gone_s < 19.0}
    assert list(gone) == ["unified-0002.0"], "of two that are warm the newer one goes"


def test_one_that_is_wanted_again_before_it_sleeps_is_there_at_once() -> None:
    spec, decides = warm([(2.0, 1), (3.0, 2)], replicas=2, num_warm=1, wake_s=60.0)
    long = [request(number, 1.9, output_tokens=250) for number in range(2)]
    later = [request(number, 4.0 + number * 0.05) for number in range(2, 20)]

    table = simulate(spec, decides, PlainTraffic([*long, *later]), ["all"], seed=1)

    busy = [each.replica_id for each in table.replicas if each.attempts > 1]
    assert busy == ["unified-0000.0", "unified-0001.0"]


@for_each("apart", [False, True], ids=["unified", "prefill_decode"])
def test_nothing_is_lost_or_repeated_with_warm_replicas(apart: bool) -> None:
    steps = [(2.0, 5), (8.0, 1), (14.0, 4), (15.0, 2), (16.0, 6), (25.0, 1)]
    spec, decides = warm(steps, num_warm=2, replicas=2, apart=apart, num_gateways=2)

    table = simulate(spec, decides, poisson(900, rate_per_s=25.0, seed=3), ["all"], seed=3)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert set(table.attempts) == ({2} if apart else {1})
    held = {at_s: sum(each.asked_s <= at_s < each.gone_s for each in table.replicas) for at_s in (1.0, 6.0, 20.0)}
    assert held == {1.0: 4 * (1 + apart), 6.0: 6 * (1 + apart), 20.0: 6 * (1 + apart)}


def test_a_warm_replica_that_crashes_is_replaced() -> None:
    spec, decides = warm([(0.0, 1)], replicas=1, num_warm=1)
    crash = Fault(kind=FaultKind.CRASH, at_s=4.0, for_s=1.0, role=Role.UNIFIED, replica=1)

    table = simulate(spec, decides, steady(20), ["all"], seed=1, faults=[crash])

    last = next(each for each in table.replicas if each.replica_id == "unified-0001.1")
    assert last.warm_s == pytest.approx(table.end_s.max() - 9.0, abs=1.5)


@dataclass
class Sides:
    """Wants so many prefill and decode replicas from so many seconds on."""

    steps: list[tuple[float, int, int]]
    requires: frozenset[Any] = frozenset()
    consumes: frozenset[Any] = frozenset()

    def targets(self, view: Any, now_s: float) -> dict[str, int]:
        wanted = [{"prefill": prefill, "decode": decode} for at_s, prefill, decode in self.steps if at_s <= now_s]
        return wanted[-1] if wanted else {}


def changing(steps: list[tuple[float, int, int]], replicas: int = 3, **more: Any) -> tuple[FleetSpec, DispatcherSpec]:
    """Prefill and decode replicas that change roles."""
    spec, decides = scaled([], replicas, apart=True, **more)
    pools = tuple(replace(pool, autoscaling=replace(UP_TO_SIX, changes_roles=True)) for pool in spec.pools)
    scaling = PolicyChoice(name=f"{__name__}:Sides", params={"steps": steps})
    return replace(spec, pools=pools), replace(decides, policies=replace(decides.policies, scaling=scaling))


@for_each("num_gateways", [1, 3])
def test_replicas_change_roles_without_a_start_and_nothing_is_lost_or_repeated(num_gateways: int) -> None:
    spec, decides = changing([(3.0, 1, 5), (9.0, 5, 1), (15.0, 2, 4), (16.0, 4, 2)], num_gateways=num_gateways)
    up: dict[str, set[str]] = {}
    served: dict[str, set[str]] = {"prefill": set(), "decode": set()}

    def note(_: int, now_s: float, event: Any, __: Any) -> None:
        if isinstance(event, FleetChanged):
            up[event.pool] = {each.replica_id for each in event.replicas}
            served[event.pool] |= up[event.pool]
            assert not up.get("prefill", set()) & up.get("decode", set()), "a replica has one role at a time"

    table = simulate(spec, decides, poisson(900, rate_per_s=25.0, seed=3), ["all"], seed=3, on_event=note)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert set(table.attempts) == {2}
    assert len(table.replicas) == 6, "none has started beside the first ones"
    assert {each.gone_s for each in table.replicas} == {table.end_s.max()}
    assert len(served["prefill"]) >= 5
    assert len(served["decode"]) >= 5


def test_a_replica_serves_the_other_side_when_it_has_finished_what_it_has() -> None:
    spec, decides = changing([(5.0, 3, 1)], replicas=2)
    long = [request(number, 4.0, output_tokens=500) for number in range(4)]
    changed_s: list[float] = []

    def note(_: int, now_s: float, event: Any, __: Any) -> None:
        if isinstance(event, FleetChanged) and event.pool == "prefill" and len(event.replicas) == 3:
            changed_s.append(now_s)

    table = simulate(spec, decides, PlainTraffic([*long, request(4, 20.0)]), ["all"], seed=1, on_event=note)

    first, *_, last = sorted(table.end_s[table.logical_request < 4].tolist())
    assert set(table.attempts) == {2}
    assert first - 1.0 <= changed_s[0] <= last + 1.0
    assert changed_s[0] > 6.0


def test_a_replica_that_dies_in_its_other_role_comes_back_in_its_own() -> None:
    spec, decides = changing([(2.0, 2, 4)])
    crash = Fault(kind=FaultKind.CRASH, at_s=6.0, for_s=1.0, role=Role.PREFILL, replica=2)
    served: dict[str, set[str]] = {"prefill": set(), "decode": set()}

    def note(_: int, now_s: float, event: Any, __: Any) -> None:
        if isinstance(event, FleetChanged):
            served[event.pool] |= {each.replica_id for each in event.replicas}

    table = simulate(spec, decides, steady(20), ["all"], seed=1, faults=[crash], on_event=note)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert {"prefill-0002.0", "decode-0003.0"} <= served["decode"], "one starts in the place of what was lost there"
    assert "prefill-0002.1" in served["prefill"]

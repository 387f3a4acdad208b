"""Policies that say how many replicas each pool has."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import CATALOG, PolicyChoice, PolicySpec, build_scaling
from policies.contracts import Need
from policies.errors import ConfigError
from policies.estimators import Trend
from policies.pool_views import Demand, PoolView, ScalingView
from policies.scaling import Fixed, JointByWork, MeanLengths, QueueDepth, Ratio, Scheduled, TargetUtilization
from policies.scaling.correction import Correction
from policies.scaling.role_changes import with_role_changes
from policies.scaling.stabilization import Stabilization
from policies.views import Role
from tests.tables import for_each

PERIOD_S = 10.0
PARAMS: dict[str, dict[str, Any]] = {
    "mean_lengths": {"prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 2_000},
    "ratio": {"decode_tokens_per_s": 2_000},
    "scheduled": {"entries": [{"at_s": 0, "replicas": {"prefill": 2, "decode": 3}}]},
}
AT_ONCE = {"down_after_s": 0.0}
counts = st.integers(0, 200)
amounts = st.floats(0.0, 1e6)
pool_views = st.builds(
    PoolView,
    role=st.sampled_from(Role),
    num_ready=st.integers(0, 20),
    num_starting=st.integers(0, 5),
    warm_replicas=st.integers(0, 3),
    num_changing=st.integers(0, 5),
    changes_roles=st.booleans(),
    wake_s=st.floats(0.0, 10.0),
    start_s=st.floats(0.0, 300.0),
    step_s=st.floats(0.0, 0.1),
    demand=st.builds(
        Demand,
        num_requests=amounts,
        added_s=amounts,
        prompt_tokens=amounts,
        output_tokens=amounts,
        held_tokens=amounts,
        num_in_time=amounts,
        num_late=amounts,
    ),
    num_waiting=counts,
    waiting_s=st.floats(0.0, 1e4),
    num_ongoing=counts,
    max_ongoing_requests=st.integers(1, 500),
    max_num_seqs=st.integers(1, 500),
    kv_tokens=st.integers(0, 10**6),
    kv_capacity_tokens=st.integers(1, 10**6),
)


def made(name: str, **params: Any) -> Any:
    spec = PolicySpec(scaling=PolicyChoice(name=name, params={**PARAMS.get(name, {}), **params}))
    return build_scaling(spec, rng_for=lambda _: pytest.fail("no policy draws"), provided=frozenset(Need))


def pool(role: Role = Role.UNIFIED, num_ready: int = 2, **more: Any) -> PoolView:
    return PoolView(role=role, num_ready=num_ready, step_s=0.006, kv_capacity_tokens=400_000, **more)


def view(**pools: PoolView) -> ScalingView:
    return ScalingView(pools=pools, period_s=PERIOD_S)


def asked(policy: Any, now_s: float = 0.0, /, **pools: PoolView) -> Mapping[str, int]:
    found: Mapping[str, int] = policy.targets(view(**pools), now_s)
    return found


def busy(replicas: float, **more: Any) -> Demand:
    """Demand that fills so many replicas for a period."""
    return Demand(num_requests=100, added_s=replicas * PERIOD_S, **more)


@for_each("name", sorted(CATALOG["scaling"]))
def test_every_policy_names_whole_numbers_of_replicas_of_pools_that_there_are(name: str) -> None:
    @given(st.dictionaries(st.sampled_from(["prefill", "decode", "unified"]), pool_views, min_size=1))
    def holds(pools: dict[str, PoolView]) -> None:
        policy = made(name)
        for now_s in (10.0, 20.0):
            wanted = policy.targets(ScalingView(pools=pools, period_s=PERIOD_S), now_s)
            assert all(isinstance(each, int) and each >= 0 for each in wanted.values())
            assert name == "scheduled" or set(wanted) <= set(pools)

    holds()


@for_each("name", ["queue_depth", "ratio", "mean_lengths", "joint_by_work", "target_utilization"])
def test_who_has_twice_as_much_to_do_never_gets_fewer(name: str) -> None:
    @given(pool_views)
    def holds(one: PoolView) -> None:
        more = replace(
            one,
            demand=one.demand.times(2.0),
            num_waiting=2 * one.num_waiting,
            waiting_s=2 * one.waiting_s,
            num_ongoing=2 * one.num_ongoing,
            kv_tokens=2 * one.kv_tokens,
        )
        if name != "target_utilization" or one.num_starting == 0:
            assert asked(made(name), p=more).get("p", 0) >= asked(made(name), p=one).get("p", 0) - 1

    holds()


def test_as_many_as_there_are_is_no_change() -> None:
    assert asked(Fixed(), unified=pool(demand=busy(9))) == {}


def test_a_calendar_goes_by_the_time_of_the_day_and_begins_anew() -> None:
    entries = [{"at_s": 100, "replicas": {"unified": 5}}, {"at_s": 200, "replicas": {"unified": 1}}]
    policy = Scheduled(entries=entries, period_s=300.0, ahead_s=20.0)
    wanted = {
        now_s: policy.targets(view(unified=pool()), now_s)["unified"] for now_s in (0.0, 79.0, 80.0, 180.0, 380.0)
    }
    assert wanted == {0.0: 1, 79.0: 1, 80.0: 5, 180.0: 1, 380.0: 5}


@for_each(
    "entries",
    [
        [],
        [{"at_s": 5}],
        [{"at_s": 5, "replicas": 3}],
        [{"at_s": 5, "replicas": {}}, {"at_s": 5, "replicas": {}}],
        [{"at_s": -1, "replicas": {}}],
        [{"at_s": 5, "replicas": {"unified": -1}}],
    ],
)
def test_a_calendar_that_is_none_is_refused(entries: list[Any]) -> None:
    with pytest.raises(ConfigError, match="entries"):
        Scheduled(entries=entries)


def test_so_many_requests_are_one_replica_whatever_they_cost() -> None:
    long = busy(50)
    assert asked(QueueDepth(target_requests=16), unified=pool(num_ongoing=30, num_waiting=3, demand=long)) == {
        "unified": 3
    }


@for_each("name", ["queue_depth", "target_utilization", "joint_by_work", "mean_lengths", "ratio"])
def test_a_pool_without_a_replica_gets_one_when_there_is_something_to_do_and_none_for_nothing(name: str) -> None:
    none = pool(num_ready=0, min_replicas=0, max_num_seqs=500)
    asks = replace(none, demand=busy(0.5, prompt_tokens=9_000.0, output_tokens=900.0))
    assert asked(made(name), p=none) == {"p": 0}
    assert asked(made(name), p=asks) == {"p": 1}


@for_each("name", ["queue_depth", "target_utilization"])
def test_a_first_replica_that_starts_longer_than_others_serve_in_its_place_is_not_taken_back(name: str) -> None:
    policy = made(name, down_after_s=5.0)
    none = pool(num_ready=0, min_replicas=0)
    assert asked(policy, 0.0, p=replace(none, demand=busy(0.1))) == {"p": 1}
    for now_s in (2.0, 10.0, 60.0):
        assert asked(policy, now_s, p=replace(none, num_starting=1)) == {"p": 1}
    assert asked(policy, 64.0, p=pool(num_ready=1, min_replicas=0)) == {"p": 1}, "it is there, and has its time"
    assert asked(policy, 66.0, p=pool(num_ready=1, min_replicas=0)) == {"p": 0}


def test_a_little_work_brings_no_first_replica_and_keeps_the_last_one() -> None:
    little = pool(Role.PREFILL, num_ready=0, min_replicas=0, demand=busy(0.07))
    assert asked(JointByWork(), p=little) == {"p": 0}
    assert asked(JointByWork(), p=replace(little, num_ready=1)) == {"p": 1}
    assert asked(JointByWork(down_after_s=0.0), p=replace(little, num_ready=1, demand=busy(0.03))) == {"p": 0}


def test_replicas_that_are_full_of_requests_or_of_kv_get_company() -> None:
    policy = TargetUtilization(target_fraction=0.5)
    assert asked(policy, p=pool(num_ongoing=150, max_ongoing_requests=100)) == {"p": 3}
    assert asked(policy, p=pool(kv_tokens=640_000, max_ongoing_requests=100)) == {"p": 4}
    near = pool(kv_tokens=420_000, max_ongoing_requests=100)
    assert asked(TargetUtilization(target_fraction=0.5), p=near) == {"p": 2}


def test_prefill_follows_decode_in_a_fixed_ratio() -> None:
    prefill, decode = pool(Role.PREFILL), pool(Role.DECODE, demand=Demand(output_tokens=35_000))
    policy = Ratio(decode_tokens_per_s=1000, prefill_per_decode=1.5)
    assert asked(policy, prefill=prefill, decode=decode) == {"decode": 4, "prefill": 6}


def test_mean_lengths_divides_tokens_by_what_a_replica_does_of_them() -> None:
    asks = Demand(prompt_tokens=450_000, output_tokens=35_000)
    policy = MeanLengths(prefill_tokens_per_s=20_000, decode_tokens_per_s=1000)
    pools = {"prefill": pool(Role.PREFILL, demand=asks), "decode": pool(Role.DECODE, demand=asks)}
    assert asked(policy, **pools) == {"prefill": 3, "decode": 4}


def test_work_is_shared_by_replicas_that_leave_time_for_the_steps_themselves() -> None:
    by_work = JointByWork(most_busy_fraction=0.5, deviations=0.0)
    assert asked(by_work, p=pool(Role.PREFILL, demand=busy(3))) == {"p": 6}
    by_tpot = JointByWork(tpot_s=0.008, deviations=0.0)  # 0.006 / (1 - 0.25) a token
    assert asked(by_tpot, d=pool(Role.DECODE, max_num_seqs=100, demand=busy(1))) == {"d": 4}


def test_who_decodes_long_contexts_needs_replicas_for_their_kv() -> None:
    held = busy(0.1, output_tokens=20_000, held_tokens=3e9)  # 3e8 a second for 0.006 s / (1 - 0.1 / n) a token
    found = asked(JointByWork(deviations=0.0), d=pool(Role.DECODE, max_num_seqs=300, demand=held))
    assert found == {"d": 6}


def test_answers_get_as_many_sequences_as_steps_have_and_some_for_chance() -> None:
    long = busy(
        0.0001, output_tokens=15_000
    )  # nine sequences in the mean, at 0.006 s a token, and three more for chance
    for max_num_seqs, replicas in ((13, 1), (12, 2), (6, 3), (4, 4)):
        decode = pool(Role.DECODE, max_num_seqs=max_num_seqs, max_ongoing_requests=2 * max_num_seqs, demand=long)
        assert asked(JointByWork(), d=decode) == {"d": replicas}


def test_work_that_grows_is_met_when_a_replica_will_have_started() -> None:
    soon, late = (JointByWork(deviations=0.0, trend_memory_s=30.0) for _ in range(2))
    for number in range(1, 7):
        now_s, demand = number * PERIOD_S, busy(1 + 0.2 * number)
        quick = asked(soon, now_s, p=pool(start_s=0.0, max_num_seqs=500, demand=demand))
        slow = asked(late, now_s, p=pool(start_s=120.0, max_num_seqs=500, demand=demand))
    assert slow["p"] > quick["p"]


def test_what_waits_is_worked_off_while_a_replica_starts() -> None:
    waits = pool(start_s=10.0, max_num_seqs=500, demand=busy(1), waiting_s=30.0)
    assert asked(JointByWork(most_busy_fraction=1.0, deviations=0.0), p=waits) == {"p": 4}


def test_fewer_replicas_go_one_by_one_when_they_were_too_many_for_a_while() -> None:
    policy = JointByWork(down_after_s=30.0, most_busy_fraction=1.0, spare_deviations=0.0, level_memory_s=0.01)
    sizes = []
    has = 6
    for number, load in enumerate([6, 1, 1, 1, 1, 1, 1, 1]):
        has = asked(policy, number * PERIOD_S, p=pool(num_ready=has, max_num_seqs=500, demand=busy(load)))["p"]
        sizes.append(has)
    assert sizes[:3] == [6, 6, 6]
    assert all(before - after <= 1 for before, after in itertools.pairwise(sizes))
    assert sizes[-1] < 4


def test_after_a_crowd_that_ends_at_once_as_few_are_wanted_as_before() -> None:
    policy, wanted = JointByWork(), []
    for number in range(150):
        load = busy(9.0 if 10 <= number < 60 else 0.01, output_tokens=100.0, held_tokens=1e4)
        shown = pool(Role.DECODE, num_ready=1, max_num_seqs=500, demand=load.times(0.2))
        wanted.append(policy.targets(ScalingView(pools={"p": shown}, period_s=2.0), 2.0 * number)["p"])
    assert max(wanted) > 8
    assert wanted[-1] == 1


def test_warm_replicas_stand_in_for_a_forecast_over_the_start() -> None:
    cold, warm = JointByWork(trend_memory_s=30.0), JointByWork(trend_memory_s=30.0)
    for number in range(1, 9):
        now_s, demand = number * PERIOD_S, busy(2 + 0.5 * number)
        shown = pool(Role.PREFILL, start_s=120.0, wake_s=1.0, demand=demand)
        without = asked(cold, now_s, p=shown)["p"]
        with_three = asked(warm, now_s, p=replace(shown, warm_replicas=3))["p"]
    assert without - 3 <= with_three < without


def late_pool(num_ready: int, fraction: float, **more: Any) -> PoolView:
    """A pool with work for two and a half replicas, so much of which is late."""
    demand = busy(2.5, num_late=100 * fraction, num_in_time=100 * (1 - fraction))
    return pool(Role.PREFILL, num_ready, demand=demand, start_s=30.0, **more)


def sizes_of(fraction_with: Callable[[int], float], periods: int, **params: Any) -> list[int]:
    """What a pool has period by period, when so much is late with so many replicas; they start at once."""
    policy, num_ready, sizes = made("joint_by_work", spare_deviations=0, **AT_ONCE, **params), 3, []
    for period in range(periods):
        num_ready = asked(policy, PERIOD_S * period, p=late_pool(num_ready, fraction_with(num_ready)))["p"]
        sizes.append(num_ready)
    return sizes


def test_a_pool_that_is_late_with_all_that_its_work_takes_gets_more_until_it_is_not() -> None:
    sizes = sizes_of(lambda replicas: 0.3 if replicas < 5 else 0.0, periods=40)
    assert sizes[0] == 3
    assert sizes[-1] == 5
    assert sizes == sorted(sizes)


def test_what_is_late_with_twice_as_many_brings_no_more() -> None:
    assert sizes_of(lambda _: 0.5, periods=200)[-1] == 5


def test_a_few_late_requests_bring_no_replica_and_with_1_none_do() -> None:
    assert set(sizes_of(lambda _: 0.015, periods=50)) == {3}
    assert set(sizes_of(lambda _: 1.0, periods=50, most_late_fraction=1.0)) == {3}


def test_a_correction_is_forgotten_in_time() -> None:
    correction, view = Correction(0.05), late_pool(3, 0.2)
    found = [correction.factor("p", view, 3, now_s, PERIOD_S) for now_s in (0.0, 70.0)]
    assert found[-1] == pytest.approx(1.2)
    assert correction.factor("p", late_pool(3, 0.0), 3, 4000.0, 3930.0) < 1.03


def test_what_is_late_while_replicas_start_or_for_want_of_them_corrects_nothing() -> None:
    correction = Correction(0.05)
    starting, full = late_pool(3, 1.0, num_starting=1), late_pool(3, 1.0, max_replicas=3)
    for number, (view, wanted) in enumerate([(starting, 3), (full, 3), (late_pool(3, 1.0), 4)] * 10):
        assert correction.factor("p", view, wanted, PERIOD_S * number, PERIOD_S) == 1.0


def test_noise_brings_no_replica_back_that_went_a_moment_ago() -> None:
    turns = {spare: direction_changes(spare) for spare in (0.0, 3.0)}
    assert turns[3.0] < turns[0.0]


def direction_changes(spare_deviations: float) -> int:
    """How often a pool's size turns while its load is 3.9 replicas with noise of a quarter of them."""
    rng, has, sizes = Random(7), 4, []
    policy = JointByWork(most_busy_fraction=1.0, spare_fraction=0.0, spare_deviations=spare_deviations)
    for number in range(400):
        demand = busy(max(0.0, rng.gauss(3.9, 1.0)))
        has = asked(policy, number * PERIOD_S, p=pool(Role.PREFILL, num_ready=has, demand=demand))["p"]
        sizes.append(has)
    steps = [after - before for before, after in itertools.pairwise(sizes) if after != before]
    return sum(before * after < 0 for before, after in itertools.pairwise(steps))


@given(st.floats(0.1, 20.0), st.floats(0.1, 20.0), st.integers(2, 12))
def test_short_of_money_pools_share_it_and_none_is_left_without(one: float, other: float, most: int) -> None:
    policy = JointByWork(most_busy_fraction=1.0, deviations=0.0, most_dollars_per_h=most)
    pools = {
        "prefill": pool(Role.PREFILL, num_ready=1, demand=busy(one)),
        "decode": pool(Role.DECODE, 1, demand=busy(other)),
    }
    found = asked(policy, **{name: replace(each, max_num_seqs=10_000) for name, each in pools.items()})
    assert min(found.values()) >= 1
    assert sum(found.values()) <= max(most, 2)


def test_money_goes_where_most_requests_are_in_time_for_it() -> None:
    policy = JointByWork(most_busy_fraction=1.0, most_dollars_per_h=24.0)
    pools = {
        "prefill": pool(Role.PREFILL, num_ready=1, demand=busy(8.0), dollars_per_h=2.0),
        "decode": pool(Role.DECODE, num_ready=1, demand=busy(8.0), dollars_per_h=4.0, max_num_seqs=10_000),
    }
    found = asked(policy, **pools)
    assert found == {"prefill": 8, "decode": 2}


def sides(prefill: tuple[int, float], decode: tuple[int, float], *, change: bool = True) -> dict[str, PoolView]:
    """Both sides of the handoff: how many replicas they have, and how many their work fills."""
    return {
        role.value: pool(role, num_ready=has, max_num_seqs=500, demand=busy(load), changes_roles=change)
        for role, (has, load) in ((Role.PREFILL, prefill), (Role.DECODE, decode))
    }


def test_who_is_short_gets_at_once_what_the_other_side_has_to_spare() -> None:
    asked_for = [sides((5, 4.5), (2, 1.5)), sides((5, 1.5), (2, 4.5)), sides((3, 1.5), (4, 4.5))]
    changing, starting = (JointByWork(spare_deviations=0.0, level_memory_s=0.01) for _ in range(2))
    found = [asked(changing, number * PERIOD_S, **pools) for number, pools in enumerate(asked_for)]
    assert found[:2] == [{"prefill": 5, "decode": 2}, {"prefill": 2, "decode": found[1]["decode"]}]
    assert found[2]["prefill"] <= 3, "what was given away is not wanted back because it was wanted of late"

    alone = [{name: replace(each, changes_roles=False) for name, each in pools.items()} for pools in asked_for]
    kept = [asked(starting, number * PERIOD_S, **pools)["prefill"] for number, pools in enumerate(alone)]
    assert kept[1] == 5, "a replica that can't come back goes later"


def test_replicas_that_change_already_are_not_changed_for_twice_and_those_that_start_are() -> None:
    for num_changing, prefill in ((2, 4), (0, 2)):
        policy = JointByWork(spare_deviations=0.0, level_memory_s=0.01)
        pools = sides((5, 1.5), (2, 3.5))
        pools["decode"] = replace(pools["decode"], num_starting=2, num_changing=num_changing)
        pools["prefill"] = replace(pools["prefill"], num_ready=4)
        asked(policy, 0.0, **sides((4, 3.9), (4, 3.5)))
        assert asked(policy, PERIOD_S, **pools)["prefill"] == prefill


@given(st.dictionaries(st.sampled_from(["prefill", "decode", "other"]), pool_views, min_size=1), st.data())
def test_role_changes_take_nothing_from_who_wants_it_and_give_nobody_more(pools: Any, data: st.DataObject) -> None:
    targets = {name: data.draw(st.integers(0, 25)) for name in pools}
    wanted = {name: data.draw(st.integers(0, its)) for name, its in targets.items()}
    changed = with_role_changes(targets, wanted, pools)
    given_up = {name: targets[name] - changed[name] for name in pools}
    assert all(number >= 0 for number in given_up.values())
    for name, number in given_up.items():
        assert not number or (pools[name].changes_roles and changed[name] >= wanted[name])


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.integers(0, 9)), min_size=1, max_size=30), st.floats(0.0, 30.0))
def test_less_is_wanted_only_when_nothing_as_large_was_for_a_while(
    steps: list[tuple[float, int]], for_s: float
) -> None:
    stable, now_s, seen = Stabilization(for_s), 0.0, []
    for gap_s, wanted in steps:
        now_s += gap_s
        seen.append((now_s, wanted))
        expected = max(each for at_s, each in seen if at_s > now_s - for_s or at_s == now_s)
        assert stable.at("p", wanted, now_s) == expected


def test_a_steady_climb_is_extrapolated_and_a_fall_is_not() -> None:
    climb, fall = Trend(10.0, 10.0), Trend(10.0, 10.0)
    for number in range(40):
        climb.add(float(number), 1.0)
        fall.add(100.0 - number, 1.0)
    assert climb.after(10.0) == pytest.approx(49.0, rel=0.05)
    assert fall.after(10.0) == pytest.approx(fall.level)
    assert climb.after(0.0, deviations=2.0) >= climb.after(0.0)


def test_the_level_of_noise_varies_as_much_as_it_says() -> None:
    rng, trend, levels, said = Random(5), Trend(5.0, 500.0), [], []
    for _ in range(20_000):
        trend.add(rng.gauss(10.0, 2.0), 1.0)
        levels.append(trend.level)
        said.append(trend.level_deviation)
    assert sum(said) / len(said) == pytest.approx(stdev(levels), rel=0.15)

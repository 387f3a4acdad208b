"""Experiments on a small fleet, simulated for real."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.lab import LabFrames, LabScenario, run, scenario, sweep
from loadtests.lab.capacity import simulated_capacity_rps
from policies.errors import ConfigError
from tests.tables import for_each

EXAMPLE = str(Path(__file__).parents[1] / "scenarios" / "two-classes.yaml")
SHORT = {"duration_s": 12, "warm_up_s": 2, "faults": [], "checks": []}
GRID: dict[str, list[object]] = {"load": [0.3, 0.9], "policies.balancing": ["random", "least_work_left"]}


def short(**settings: object) -> LabScenario:
    return scenario(EXAMPLE, {**SHORT, **settings})


def offered_per_s(its: LabScenario) -> float:
    return its.scenario.workload.requests_per_s(its.scenario.duration_s)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def grid(folder: Path) -> LabFrames:
    return sweep(short(), GRID, variants=["policy"], seeds=5, jobs=1, folder=folder)


def test_a_grid_has_every_metric_of_every_run(grid: LabFrames) -> None:
    offered = grid.metrics[(grid.metrics["metric"] == "offered_requests") & (grid.metrics["group"] == "all")]

    assert list(offered.columns[:4]) == ["load", "policies.balancing", "variant", "seed"]
    assert len(offered) == 2 * 2 * 5
    assert set(grid.metrics["group"]) == {"all", "chat", "documents"}
    assert grid.problems.empty


def test_every_point_of_a_grid_meets_the_same_requests(grid: LabFrames) -> None:
    """Turns of a conversation are offered as far as the ones before are answered in time."""
    offered = grid.metrics[(grid.metrics["metric"] == "offered_requests") & (grid.metrics["group"] == "chat")]

    per_seed = offered.groupby(["load", "seed"])["value"].nunique()

    assert (per_seed == 1).all()


def test_load_is_a_share_of_what_the_fleet_can_do(grid: LabFrames) -> None:
    its = short().scenario
    capacity_rps = simulated_capacity_rps(its)

    assert offered_per_s(short(load=0.5)) == pytest.approx(capacity_rps / 2)
    offered = grid.table("offered_rps")["policy"]
    assert offered.loc[(0.9, "random")] / offered.loc[(0.3, "random")] == pytest.approx(3, rel=0.15)


def test_load_means_the_same_whatever_is_compared() -> None:
    others = {"fleet.num_gateways": 4, "policies.balancing": "random", "policies.admission": "bounded_queue"}

    assert simulated_capacity_rps(short(**others).scenario) == simulated_capacity_rps(short().scenario)


def test_a_capacity_does_not_depend_on_how_users_bunch() -> None:
    bursts = {"workload.classes.chat.arrivals": {"gamma": {"rate_per_s": 8, "cv": 13}}}

    assert simulated_capacity_rps(short(**bursts).scenario) == simulated_capacity_rps(short().scenario)


def test_a_rate_multiplies_what_the_file_says() -> None:
    assert offered_per_s(short(rate=3)) == pytest.approx(3 * offered_per_s(short()))


def test_a_table_has_the_means_over_seeds(grid: LabFrames) -> None:
    of_cell = grid.metrics.query("load == 0.9 and metric == 'ttft_p50_s' and group == 'chat'")
    of_cell = of_cell[of_cell["policies.balancing"] == "random"]

    table = grid.table("ttft_p50_s", "chat")

    assert table.loc[(0.9, "random"), "policy"] == pytest.approx(of_cell["value"].mean())
    assert list(table.index) == [(0.3, "random"), (0.3, "least_work_left"), (0.9, "random"), (0.9, "least_work_left")]


def test_a_comparison_pairs_the_seeds(grid: LabFrames) -> None:
    found = grid.paired("ttft_p90_s", against={"policies.balancing": "random"}, group="chat")

    assert list(found["load"]) == [0.3, 0.9]
    assert set(found["policies.balancing"]) == {"least_work_left"}
    assert np.allclose(found["difference"], found["value"] - found["reference"])
    assert ((found["low"] <= found["difference"]) & (found["difference"] <= found["high"])).all()


def test_variants_are_compared_at_each_point(folder: Path) -> None:
    found = sweep(short(), {"load": [0.3]}, seeds=5, jobs=1, folder=folder).paired("ttft_p50_s", against="random")

    assert list(found["variant"]) == ["policy", "p2c"]


def test_tenths_go_from_the_shortest_prompts_to_the_longest(grid: LabFrames) -> None:
    one = grid.tenths.query("load == 0.3 and seed == 1 and metric == 'offered_requests'")
    one = one[one["policies.balancing"] == "random"]

    assert (one["least_tokens"].to_numpy()[1:] > one["most_tokens"].to_numpy()[:-1]).all()
    offered = grid.metrics.query("load == 0.3 and seed == 1 and metric == 'offered_requests' and group == 'all'")
    assert one["value"].sum() == offered["value"].iloc[0]


def test_a_run_that_was_made_before_is_not_made_again(
    grid: LabFrames, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.lab.lab_run.run", None)

    again = sweep(short(), GRID, variants=["policy"], seeds=5, jobs=1, folder=folder)

    assert again.metrics.equals(grid.metrics)
    assert again.tenths.equals(grid.tenths)


@for_each(
    "settings",
    [{"policies.balancing": "round_robin"}, {"slos.chat.ttft_s": 0.1}, {"clients.max_requests": 5}, {"drain_s": 99}],
)
def test_whatever_decides_a_run_is_in_its_key(settings: dict[str, object], grid: LabFrames, folder: Path) -> None:
    kept = {path.name for path in folder.rglob("*.msgpack")}

    run(short(**settings), variants=["policy"], seeds=[1], jobs=1, folder=folder)

    assert len({path.name for path in folder.rglob("*.msgpack")} - kept) == 1


def test_how_a_scenario_is_called_and_judged_is_not_in_a_runs_key(folder: Path) -> None:
    run(short(), variants=["policy"], seeds=[1], jobs=1, folder=folder)
    kept = {path.name for path in folder.rglob("*.msgpack")}

    run(short(description="another", baselines={}), variants=["policy"], seeds=[1], jobs=1, folder=folder)

    assert {path.name for path in folder.rglob("*.msgpack")} == kept


def test_gauges_over_time_change_nothing_in_the_run(folder: Path) -> None:
    plain = run(short(load=1.5), variants=["policy"], seeds=[1], jobs=1, folder=folder)
    watched = run(short(load=1.5), variants=["policy"], seeds=[1], gauges_period_s=0.5, jobs=1, folder=folder)

    assert watched.metrics.equals(plain.metrics)
    assert set(watched.gauges["gateway"]) == {0, 1}
    assert plain.gauges.empty
    at_s = watched.gauges["at_s"].unique()
    assert np.allclose(np.diff(at_s), 0.5)
    assert "shed_fraction" in set(watched.gauges["gauge"])


def test_variants_may_differ_in_gateways_and_windows(folder: Path) -> None:
    baselines = {"one": {"num_gateways": 1}, "windowed": {"prefill_window_tokens": 4096}}
    its = short(baselines=baselines).scenario

    assert its.fleet_spec("one").num_gateways == 1
    assert its.fleet_spec("policy").num_gateways == 2
    assert its.dispatcher_spec("windowed").params.prefill_window_tokens == 4096
    assert its.dispatcher_spec("policy").params.prefill_window_tokens == 0
    assert its.dispatcher_spec("windowed").params.max_attempts == 3


def test_a_figure_has_a_line_for_each_value(grid: LabFrames) -> None:
    figure = grid.plot("goodput_fraction", over="load", by="policies.balancing")

    drawn = [each for each in figure.data if each.showlegend is not False]
    assert [each.name for each in drawn] == ["random", "least_work_left"]
    assert list(drawn[0].x) == [0.3, 0.9]


@for_each(
    ("settings", "field"),
    [
        ({"load": 0}, "load"),
        ({"load": "half"}, "load"),
        ({"rate": 100}, "rate"),
        ({"load": 1, "rate": 1}, "rate"),
        ({"fleet.speed": 1}, f"{EXAMPLE}: fleet.speed"),
    ],
)
def test_a_difference_that_does_not_fit_is_refused(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        short(**settings)

    assert caught.value.field == field


def test_what_is_not_there_is_refused_by_name(grid: LabFrames) -> None:
    with pytest.raises(ConfigError, match="of one of"):
        grid.table("goodput")
    with pytest.raises(ConfigError, match=r"against.variant: got 'nothing'"):
        grid.paired("goodput_fraction", against="nothing")
    with pytest.raises(ConfigError, match="over: got 'speed'"):
        grid.plot("goodput_fraction", over="speed")
    with pytest.raises(ConfigError, match="variants: got 'nothing'"):
        run(short(), variants=["nothing"])
    with pytest.raises(ConfigError, match="seeds"):
        run(short(), seeds=[1, 1])

"""The load test that one command runs: what it sends fits two cores, and the simulator is given the same."""

from rich.table import Table

from engines.model.profile import load_profile
from loadtests.live.configuration import read_config
from loadtests.live.counterpart import Counterpart
from loadtests.results.metrics import ALL, MetricValue
from loadtests.results.run_folder import ASYNCIO, SIMULATOR, SavedRun
from loadtests.studies.loadtest import CONFIG, PROFILE, LoadtestCase, side_by_side
from tests.loadtests.saved_runs import saved_run
from tests.tables import for_each


def test_the_simulator_runs_the_same_plan_on_the_deployments_fleet() -> None:
    case = LoadtestCase(scenario="ragged", rate_fraction=0.05)
    counterpart = Counterpart(document=read_config(CONFIG), profile=load_profile(PROFILE), hop_s=0.01)
    saved = counterpart.run(case.plan(10.0))

    planned = [arrival.request.logical_request for arrival in case.plan(10.0).clients().arrivals()]
    assert sorted(saved.table.logical_request.tolist()) == planned
    assert (saved.record.verdict, saved.record.driver, saved.record.health) == ("PASS", "simulator", None)

    assert cells_of(side_by_side(saved, saved), "ttft_p50_s")[-2:] == ["1.000", "yes"]


def with_ttft(value_s: float, *, driver: str = ASYNCIO) -> SavedRun:
    metric_value = MetricValue(value=value_s, samples=100)
    return saved_run([], driver=driver, metrics={ALL: {"ttft_p50_s": metric_value, "ttft_p99_s": metric_value}})


def cells_of(table: Table, metric: str) -> list[str]:
    columns = [list(column.cells) for column in table.columns]
    row = columns[0].index(metric)
    return [str(column[row]) for column in columns]


@for_each(("live_s", "said"), [(0.114, ["1.140", "yes"]), (0.116, ["1.160", "no"]), (0.086, ["0.860", "yes"])])
def test_what_is_printed_is_judged_as_the_report_judges_it(live_s: float, said: list[str]) -> None:
    """0.116 is 16% more than the simulator has, and the simulator 13.8% less than 0.116: one rule, and not two."""
    table = side_by_side(with_ttft(live_s), with_ttft(0.1, driver=SIMULATOR))

    assert cells_of(table, "ttft_p50_s") == ["ttft_p50_s", f"{1e3 * live_s:.1f} ms", "100.0 ms", *said]
    assert cells_of(table, "ttft_p99_s")[-1] == "too few", "a p99 of a hundred requests is the slowest of them"
    assert "exit status does not judge it" in str(table.caption)

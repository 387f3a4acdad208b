"""The load test that one command runs: what it sends fits two cores, and the simulator is given the same."""

import numpy as np
import pytest
import yaml
from rich.console import Console

from engines.profile import load_profile
from loadtests.fidelity_runs import dispatcher_of, fleet_of
from loadtests.loadtest import CASES, CONFIG, PROFILE, Case, main, side_by_side, simulated

MOST_TOKENS_PER_S = 2_000
SECONDS = 60.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.scenario)
def test_no_ten_seconds_have_more_tokens_than_two_cores_pass_on(case: Case) -> None:
    requests = [arrival.request for arrival in case.plan(SECONDS).clients().arrivals()]
    of_ten_s, _ = np.histogram(
        [request.scheduled_s for request in requests],
        bins=np.arange(0, SECONDS + 1, 10),
        weights=[request.output_tokens for request in requests],
    )

    assert of_ten_s.max() / 10 < MOST_TOKENS_PER_S
    assert len(requests) > 100


def test_the_simulator_runs_the_same_plan_on_the_deployments_fleet() -> None:
    case = Case(scenario="ragged", rate_fraction=0.05)
    document = yaml.safe_load(CONFIG.read_text())
    fleet = fleet_of(document, load_profile(PROFILE), 0.01)
    saved = simulated(case, 10.0, fleet, dispatcher_of(document, fleet))

    planned = [arrival.request.intent for arrival in case.plan(10.0).clients().arrivals()]
    assert sorted(saved.table.intent.tolist()) == planned
    assert (saved.record.verdict, saved.record.driver, saved.record.health) == ("PASS", "simulator", None)

    console = Console(width=100)
    with console.capture() as printed:
        console.print(side_by_side(saved, saved))
    assert "ttft_p50_s" in printed.get()
    assert "+0%" in printed.get()


@pytest.mark.parametrize("arguments", [["--seconds", "5"], ["--scenarios", "nowhere"]])
def test_what_can_not_be_run_is_exit_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2

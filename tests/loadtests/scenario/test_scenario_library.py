"""Every scenario that comes with spillway loads and says what it asks; `make scenarios` runs and judges them."""

import math
import re
from pathlib import Path

from cluster.sim.simulator import simulate
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import POLICY, library, load
from loadtests.simulation.simulation import Run, run
from tests.tables import for_each


def test_the_library_is_not_empty() -> None:
    assert {"steady", "ragged", "flash-crowd", "straggler", "replica-crash", "long-context-flood", "sessions"} <= {
        path.stem for path in library()
    }


def test_a_scenario_runs() -> None:
    """For two seconds: all of it is `make scenarios`."""
    scenario = load("ragged").changed(duration_s=2.0, warm_up_s=0.0, seeds=(1,))

    result = run(Run(scenario=scenario, variant=POLICY, seed=1), simulate)

    assert not result.problems
    assert result.metrics[ALL]["offered_requests"].value > 5
    assert not math.isnan(result.metrics[ALL]["goodput_fraction"].value)


def test_what_is_too_long_for_make_scenarios_has_a_target_of_its_own() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
    named = [
        name
        for line in re.findall(r"^(?:SCALING|SHEDDING|HEDGING|RECORDED) := (.*)$", makefile, re.MULTILINE)
        for name in line.split()
    ]

    assert sorted(named) == sorted(path.stem for path in library() if load(str(path)).is_long)


@for_each("path", library())
def test_a_scenario_asks_a_question_and_has_a_check_and_a_baseline(path: Path) -> None:
    scenario = load(str(path))

    assert "?" in scenario.description
    assert scenario.checks
    assert set(scenario.variants) - {POLICY}
    assert len(scenario.seeds) >= 5
    assert all(scenario.dispatcher_spec(variant) and scenario.fleet_spec(variant) for variant in scenario.variants)

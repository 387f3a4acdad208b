"""Every scenario that comes with spillway loads, runs, and says what it asks; its marks are `make scenarios`."""

import math
from pathlib import Path

import pytest

from cluster.sim.simulator import simulate
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import POLICY, library, load
from loadtests.simulation.simulation import Run, run

SECONDS = 2.0


def test_the_library_is_not_empty() -> None:
    assert {"steady", "ragged", "flash-crowd", "straggler", "replica-crash", "long-context-flood", "sessions"} <= {
        path.stem for path in library()
    }


@pytest.mark.parametrize("path", library(), ids=lambda path: path.stem)
def test_a_scenario_runs_with_every_variant(path: Path) -> None:
    scenario = load(str(path)).changed(duration_s=SECONDS, warm_up_s=0.0, faults=(), seeds=(1,))

    for variant in scenario.variants:
        result = run(Run(scenario=scenario, variant=variant, seed=1), simulate)

        assert not result.problems
        assert result.figures[ALL]["offered_intents"].value > 5
        assert not math.isnan(result.figures[ALL]["goodput_fraction"].value)


@pytest.mark.parametrize("path", library(), ids=lambda path: path.stem)
def test_a_scenario_asks_a_question_and_has_a_mark_and_a_baseline(path: Path) -> None:
    scenario = load(str(path))

    assert "?" in scenario.description
    assert scenario.marks
    assert set(scenario.variants) - {POLICY}
    assert len(scenario.seeds) >= 5

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cluster.sim import simulator
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Traffic
from loadtests.results.metrics import ALL, Window
from loadtests.scenario.scenario import load
from loadtests.simulation.run_metrics import with_abandoned
from loadtests.simulation.simulation import Run, run
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.clients import AbandonedRequest
from routing.config.spec import DispatcherSpec
from tests.loadtests import fake_simulator
from tests.loadtests.run_tables import run_table, served

SCENARIO = load(str(Path(__file__).parents[1] / "scenarios" / "two-classes.yaml"))


def what(**changes: Any) -> Run:
    return Run(**{"scenario": SCENARIO, "variant": "policy", "seed": 1, **changes})


def test_a_run_is_the_same_every_time_but_for_the_time_it_takes() -> None:
    one, other = (run(what(), fake_simulator.simulate) for _ in range(2))

    assert (one.metrics, one.num_requests) == (other.metrics, other.num_requests)
    assert one.problems == ()
    assert run(what(seed=2), fake_simulator.simulate).metrics != one.metrics


def test_the_simulator_gets_the_scenario_and_the_variants_policies() -> None:
    seen: dict[str, Any] = {}

    def simulate(
        fleet: FleetSpec, dispatcher: DispatcherSpec, traffic: Traffic, traffic_classes: Sequence[str], **settings: Any
    ) -> RunTable:
        seen.update(settings, fleet=fleet, balancing=dispatcher.policies.balancing.name, classes=traffic_classes)
        return fake_simulator.simulate(fleet, dispatcher, traffic, traffic_classes, **settings)

    run(what(variant="random", seed=7), simulate)

    assert seen == {
        "fleet": SCENARIO.fleet_spec(),
        "balancing": "random",
        "classes": ("chat", "documents"),
        "seed": 7,
        "until_s": 300 + SCENARIO.drain_s,
        "faults": SCENARIO.faults,
    }


def test_policy_and_baseline_meet_the_same_users() -> None:
    offered = {
        variant: run(what(variant=variant), fake_simulator.simulate).metrics["chat"]["offered_requests"]
        for variant in SCENARIO.variants
    }

    assert len(set(offered.values())) == 1


def test_requests_that_were_refused_first_are_counted_as_requests() -> None:
    metrics = run(what(), fake_simulator.simulate).metrics

    assert metrics["chat"]["sends_per_request"].value == 1
    assert 1.2 < metrics["documents"]["sends_per_request"].value < 1.8


def test_turns_that_were_never_sent_are_offered_logical_requests() -> None:
    """Only clients know of them: a session whose turn was refused for good has no further turns."""
    patient = run(what(), fake_simulator.simulate).metrics
    impatient = SCENARIO.changed(clients=SCENARIO.clients.__class__(max_requests=1))

    metrics = run(what(scenario=impatient), fake_simulator.simulate).metrics

    assert patient["documents"]["abandoned_fraction"].value == 0
    assert metrics["documents"]["abandoned_fraction"].value > 0.1
    assert metrics[ALL]["goodput_fraction"].value < patient[ALL]["goodput_fraction"].value


def test_an_abandoned_logical_request_is_a_row_without_a_request() -> None:
    table = run_table(served(0, 20, 0.5, 1.5, 11))
    abandoned = AbandonedRequest(
        logical_request=1, session=0, traffic_class=0, scheduled_s=25, abandoned_s=22, prompt_tokens=9
    )

    found = with_abandoned(table, [abandoned])

    assert with_abandoned(table, []) is table
    assert found.logical_request.tolist() == [0, 1]
    assert (found.scheduled_s[1], found.end_s[1], found.prompt_tokens[1]) == (25, 22, 9)
    assert (OUTCOMES[found.outcome[1]], found.attempts[1], found.is_last[1]) == ("abandoned", 0, True)
    assert np.isnan(found.first_token_s[1])
    assert all(
        getattr(found, name).dtype == getattr(table, name).dtype
        for name in RunTable.__slots__
        if isinstance(getattr(table, name), np.ndarray)
    )


def test_a_run_without_traffic_in_its_window_is_invalid() -> None:
    late = Poisson(rate_per_s=1e-9)
    quiet = SCENARIO.workload.model_copy(
        update={"classes": tuple(replace(each, arrivals=late) for each in SCENARIO.workload.classes)}
    )

    problems = run(what(scenario=SCENARIO.changed(workload=quiet)), fake_simulator.simulate).problems

    assert problems == ("policy, seed 1: nothing was wanted from 30 s to 300 s",)


def test_a_run_that_left_requests_without_an_answer_is_invalid() -> None:
    """Of a request that is still open when a run is cut off there is no row."""

    def cut_off(*arguments: Any, until_s: float, **settings: Any) -> RunTable:
        return fake_simulator.simulate(*arguments, until_s=150, **settings)

    problems = run(what(), cut_off).problems

    assert len(problems) == 1
    assert re.fullmatch(r"policy, seed 1: 1,\d{3} requests had no answer 3600 s after duration_s", problems[0])


def test_the_simulator_runs_a_scenario_to_its_end() -> None:
    """A minute of the example in virtual time: everybody gets a verdict, and replicas did the work."""
    result = run(what(scenario=SCENARIO.changed(duration_s=60.0, faults=())), simulator.simulate)

    assert result.problems == ()
    assert result.num_requests > 400
    assert result.metrics["chat"]["goodput_fraction"].value > 0.9
    assert 0 < result.metrics[ALL]["utilisation_unified"].value < 1
    assert result.metrics[ALL]["imbalance"].value >= 1


def test_a_window_has_metrics_of_its_own() -> None:
    windows = {"early": Window(from_s=0, until_s=5), "late": Window(from_s=5, until_s=SCENARIO.duration_s)}
    scenario = SCENARIO.changed(windows=windows, warm_up_s=0.0)

    metrics = run(what(scenario=scenario), fake_simulator.simulate).metrics

    parts = [metrics[f"{ALL}@{name}"]["offered_requests"].value for name in windows]
    assert sum(parts) == metrics[ALL]["offered_requests"].value
    assert min(parts) > 0
    assert "imbalance" in metrics[ALL]
    assert "imbalance" not in metrics["all@early"]


def test_turns_find_their_history_where_the_session_stays() -> None:
    scenario = load("session-affinity-crash").changed(duration_s=30.0, warm_up_s=0.0, faults=(), windows={}, checks=())
    here, anywhere = (
        run(what(scenario=scenario, variant=variant), simulator.simulate).metrics[ALL]["cached_prompt_fraction"].value
        for variant in ("policy", "least_work_left")
    )

    assert here > 1.1 * anywhere > 0

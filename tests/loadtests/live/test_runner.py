"""What a study runs, on deployments that are simulated themselves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.model.profile import load_profile
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.live_run import LivePlan, LiveResult
from loadtests.live import runner
from loadtests.live.counterpart import Counterpart
from loadtests.live.outcome import StudyOutcome
from loadtests.live.runner import Options, num_steps, run_study
from loadtests.live.study import Study
from loadtests.results.run_folder import ASYNCIO, read
from loadtests.watch.gateway_page import MetricsPage
from tests.loadtests.live.studies import WITH, WITHOUT, document, study
from tests.loadtests.live_scenarios import health

PROFILE = "h100-llama3-8b"
CHAT = document()["workload"]["classes"][0]
LONG = {"workload": {"classes": [CHAT | {"prompt_tokens": 20_000, "arrivals": {"gamma": {"rate_per_s": 1, "cv": 3}}}]}}
FLOOD = {"requests_per_s": 150, "for_s": 2, "settles_s": 0.5}


class FakeDeployment:
    """One that has nothing to say of itself."""

    pid = os.getpid()
    url = "http://127.0.0.1:1"
    num_gateways = 1
    pinned = None
    pools = ({"name": "unified", "role": "unified"},)

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.configuration = configuration
        self.endpoint = Endpoint(base_url=self.url, model="tiny-llama")

    def at_rest(self) -> MetricsPage:
        return MetricsPage()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeDeployment]:
    """The deployments that a study starts, in order."""
    found: list[FakeDeployment] = []

    @contextmanager
    def deployed(_name: str, configuration: dict[str, Any], *_: object, num_nodes: int) -> Iterator[FakeDeployment]:
        found.append(FakeDeployment(configuration))
        yield found[-1]

    def drive(plan: LivePlan, endpoint: Endpoint) -> LiveResult:
        saved = Counterpart(document=found[-1].configuration, profile=load_profile(PROFILE)).run(plan)
        return LiveResult(
            driver=ASYNCIO, target=endpoint.base_url, started_at="", table=saved.table, details=(), health=health()
        )

    def with_hop(counterpart: Counterpart, _running: FakeDeployment) -> Counterpart:
        return replace(counterpart, notes=("a hop of nothing",))

    for name, fake in (("deployed", deployed), ("_drive", drive), ("with_hop", with_hop)):
        monkeypatch.setattr(runner, name, fake)
    return found


def ran(asked: Study, folder: Path) -> tuple[StudyOutcome, list[str]]:
    outcome, told = StudyOutcome(asked), list[str]()
    run_study(asked, Options(port=1, folder=folder, tell=told.append), outcome)
    return outcome, told


def small(folder: Path, **changes: Any) -> Study:
    values = {"loads": [0.5], "warm_up_s": 0} | changes
    return study(folder, **values).measured_for(2.0)


def test_every_plan_is_also_run_in_virtual_time_and_stands_beside_the_run(
    started: list[FakeDeployment], tmp_path: Path
) -> None:
    outcome, told = ran(small(tmp_path, simulated={"profile": PROFILE}, seeds=[1, 2]), tmp_path)
    names = [WITHOUT, f"{WITHOUT}, simulated", WITH, f"{WITH}, simulated"]

    assert [(run.variant, run.seed) for run in outcome.runs] == [
        (name, seed) for pair in (names[:2], names[2:]) for seed in (1, 2) for name in pair
    ]
    assert list(outcome.metrics()) == [(name, 0.5) for name in names]
    measured, simulated = (run.saved for run in outcome.runs[:2])
    assert measured.table.logical_request.tolist() == simulated.table.logical_request.tolist()
    assert measured.record.metrics["all"]["ttft_p50_s"] == simulated.record.metrics["all"]["ttft_p50_s"]
    assert simulated.record.driver == "simulator"
    assert simulated.record.notes[0] == "a hop of nothing"
    assert simulated.record.notes[1].startswith("what binds: "), "its own account says so"
    assert read(tmp_path / f"{WITHOUT}--simulated-0.5-1").record == simulated.record
    assert len(started) == 2
    assert len(told) == num_steps(outcome.study, ()) == 6


@pytest.mark.usefixtures("started")
def test_without_a_variant_in_the_flood_each_has_a_capacity_of_its_own(tmp_path: Path) -> None:
    asked = small(
        tmp_path,
        variants={WITHOUT: {}, WITH: LONG},
        simulated={"profile": PROFILE},
        capacity={"flood": FLOOD},
    )
    outcome, told = ran(asked, tmp_path)
    capacities = outcome.capacities_rps
    offered = {variant: each["all"]["offered_rps"].value for (variant, _), each in outcome.metrics().items()}

    assert capacities[WITH] < 0.5 * capacities[WITHOUT]
    assert offered[WITHOUT] == pytest.approx(0.5 * capacities[WITHOUT], rel=0.3)
    assert [note.partition(":")[0] for note in outcome.notes() if "capacity: " in note] == [
        f"{WITHOUT}, simulated",
        f"{WITH}, simulated",
    ]
    assert f"capacity: {capacities[WITH]:.1f} requests/s measured, {capacities[WITH]:.1f} simulated (+0%)" in " ".join(
        outcome.notes()
    )
    assert len(told) == num_steps(asked, ()) == 6


@pytest.mark.usefixtures("started")
def test_a_variant_may_say_what_its_loads_are_shares_of(tmp_path: Path) -> None:
    outcome, _ = ran(small(tmp_path, variants={WITHOUT: {}, WITH: {"requests_per_s": 3}}), tmp_path)
    assert outcome.capacities_rps == {WITHOUT: 10.0, WITH: 3.0}


def test_the_capacity_of_one_variant_is_everybodys_and_nothing_is_simulated_unasked(
    started: list[FakeDeployment], tmp_path: Path
) -> None:
    outcome, told = ran(small(tmp_path, capacity={"flood": FLOOD | {"variant": WITH}}), tmp_path)

    assert [run.variant for run in outcome.runs] == [WITH, WITHOUT]
    assert len(set(outcome.capacities_rps.values())) == 1 == len(outcome.capacities_rps) - 1
    assert [each.configuration["applications"][0]["args"]["policies"]["balancing"] for each in started] == [
        "power_of_two",
        "least_work_left",
    ]
    assert len(told) == num_steps(outcome.study, ()) == 5

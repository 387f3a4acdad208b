"""What ``run_sim --save`` leaves: a folder for each run, from which its metrics can be worked out again."""

import gzip
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtests.results.analysis import analyse
from loadtests.results.metrics import ALL, Window
from loadtests.results.run_folder import REQUESTS_FILE, RUN_FILE, read
from loadtests.run_sim import main
from loadtests.simulation.junit import JUNIT_FILE
from policies.errors import InvariantViolation
from tests.loadtests import fake_simulator

EXAMPLE = Path(__file__).parents[1] / "scenarios" / "two-classes.yaml"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with every run in a folder of its own."""
    root = tmp_path_factory.mktemp("saved")
    assert main([str(EXAMPLE), "--seeds", "2", "--jobs", "1", "--save", str(root)], fake_simulator.simulate) == 0
    return root / "two-classes"


def test_each_run_has_a_folder(saved: Path) -> None:
    assert sorted(each.name for each in saved.iterdir()) == [
        f"{variant}-{seed}" for variant in ("p2c", "policy", "random") for seed in (1, 2)
    ]


def test_a_folder_has_every_request_that_its_metrics_were_taken_over(saved: Path) -> None:
    run = read(saved / "random-2")
    record = run.record
    window = Window(from_s=record.warm_up_s, until_s=record.duration_s)

    again = analyse(run.table, record.slos, window)

    assert record.metrics[ALL]["ttft_p99_s"] == again[ALL]["ttft_p99_s"]
    assert record.metrics["documents"]["sends_per_request"] == again["documents"]["sends_per_request"]


def test_every_run_has_its_checks_and_its_validity_as_junit(saved: Path) -> None:
    """As over HTTP: what shows a CI system one kind of run shows it the other."""
    policy, baseline = (ElementTree.parse(saved / name / JUNIT_FILE).getroot() for name in ("policy-1", "random-1"))

    checks = [check.text for check in read(saved / "policy-1").record.checks]
    assert [case.get("name") for case in policy] == ["the run is valid", *checks]
    assert (policy.get("failures"), policy.get("errors")) == ("0", "0")
    assert [case.get("name") for case in baseline] == ["the run is valid"]


def test_the_policys_runs_carry_what_became_of_the_checks_over_all_seeds(saved: Path) -> None:
    policies = [read(saved / f"policy-{seed}").record for seed in (1, 2)]

    assert policies[0].checks == policies[1].checks
    assert "ttft_p99_s of chat / random's <= 0.6" in [check.text for check in policies[0].checks]
    assert {check.verdict for check in policies[0].checks} == {"met"}
    assert {record.verdict for record in policies} == {"PASS"}
    assert read(saved / "random-1").record.checks == ()


def test_a_record_says_what_served(saved: Path) -> None:
    record = read(saved / "policy-1").record

    assert record.driver == "simulator"
    assert record.target == "h100-llama3-8b: 8 unified, 2 gateways"
    assert record.health is None


def test_a_check_that_is_missed_is_in_every_run_of_the_policy(tmp_path: Path) -> None:
    arguments = [str(EXAMPLE), "--policy", "balancing=random", "--seeds", "2", "--jobs", "1", "--save", str(tmp_path)]

    assert main(arguments, fake_simulator.simulate) == 1

    record = read(tmp_path / "two-classes" / "policy-2").record
    assert record.verdict == "FAIL"
    assert "missed" in {check.verdict for check in record.checks}


def test_processes_save_what_they_simulated(tmp_path: Path) -> None:
    """Tables do not travel: with several jobs each process writes its own."""
    arguments = [str(EXAMPLE), "--seeds", "1", "--jobs", "2", "--save", str(tmp_path)]

    main(arguments, fake_simulator.simulate)

    assert len(read(tmp_path / "two-classes" / "random-1").table) > 0


def test_a_command_that_breaks_off_leaves_no_record_of_what_was_there_before(tmp_path: Path) -> None:
    arguments = [str(EXAMPLE), "--seeds", "1", "--jobs", "1", "--save", str(tmp_path)]
    main(arguments, fake_simulator.simulate)
    calls = []

    def dies_at_the_second_run(*given: object, **named: object) -> object:
        calls.append(given)
        if len(calls) == 2:
            raise InvariantViolation("broken")
        return fake_simulator.simulate(*given, **named)  # type: ignore[arg-type]

    assert main(arguments, dies_at_the_second_run) == 2  # type: ignore[arg-type]

    first, second = (tmp_path / "two-classes" / name for name in ("policy-1", "random-1"))
    assert not (first / RUN_FILE).exists(), "its requests are newer than its record was"
    assert not (first / JUNIT_FILE).exists()
    with gzip.open(first / REQUESTS_FILE) as file:
        assert file.read(1) == b"{"
    assert read(second).record.variant == "random"


@pytest.mark.parametrize("is_there", [True, False], ids=["a folder", "a file"])
def test_a_folder_that_can_not_be_written_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    """A folder that is there is no proof; nobody makes files in a process's own, whoever they are."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    folder = Path("/proc/self") if is_there else tmp_path / "file"

    def is_not_called(*given: object, **named: object) -> object:
        raise InvariantViolation("simulated in vain")

    assert main([str(EXAMPLE), "--save", str(folder)], is_not_called) == 2  # type: ignore[arg-type]

    assert "--save" in capsys.readouterr().err

"""The studies' command line: its exit status, what it leaves, and one study of a deployment that is really there."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from loadtests import run_live
from loadtests.live.outcome import StudyOutcome
from loadtests.live.runner import Options
from loadtests.live.study import Study
from loadtests.results.run_folder import read
from loadtests.run_live import main
from tests.deployments.live_cluster import MARK, marked
from tests.loadtests.live.studies import WITH, WITHOUT, ran, write_study
from tests.tables import for_each

Run = Callable[[Study, Options, StudyOutcome], None]


@for_each(
    ("arguments", "says"),
    [
        (["nowhere"], "a .yaml file, or a name in the library"),
        (["overload", "--only", "nobody"], "--only: got 'nobody'; allowed: one of ['none', 'deadline']"),
        (["overload", "--seconds", "0"], "--seconds"),
        (["overload", "--rounds", "0"], "--rounds"),
        (["overload", "--loads", "30"], "--loads"),
    ],
)
def test_what_can_not_be_run_is_exit_status_2_and_says_why(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_every_study_is_listed_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "Three and five times what emulated engines" in capsys.readouterr().out


def fails(*_: object) -> None:
    raise RuntimeError("deadline ended with status 1; its log: there")


def is_interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def measures(goodput_fraction: float) -> Run:
    def run(_study: Study, _options: Options, outcome: StudyOutcome) -> None:
        outcome.runs.append(ran(WITH, metrics={"goodput_fraction": goodput_fraction}))

    return run


@for_each(
    ("run", "status", "says"),
    [
        (measures(1.0), 0, "small: PASS"),
        (measures(0.5), 1, "small: FAIL"),
        (fails, 2, "deadline ended with status 1"),
        (is_interrupted, 130, "interrupted"),
    ],
    ids=["met", "missed", "a deployment that does not start", "Ctrl-C"],
)
def test_the_exit_status_says_what_was_proved(  # noqa: PLR0917 - fixtures
    run: Run,
    status: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_live, "run_study", run)
    arguments = [str(write_study(tmp_path)), "--save", str(tmp_path / "save")]

    assert main(arguments) == status
    assert says in "".join(capsys.readouterr())
    if status < 2:
        written = msgspec.json.decode((tmp_path / "save" / "study.json").read_bytes())
        assert written["verdict"] == ("PASS", "FAIL")[status]


@pytest.mark.ray
@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_study_of_an_emulated_deployment_runs_to_its_end_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_study(
        tmp_path,
        deployment={
            "config": "emulated.yaml",
            "args": {
                "pools": [{"name": "unified", "role": "unified", "replicas": 2, "num_cpus": 0.1}],
                "policies": {"planning": "always_unified"},
            },
        },
        variants={WITHOUT: {}},
        capacity={"requests_per_s": 4},
        duration_s=6,
        warm_up_s=1,
        drain_s=60,
        slos={"chat": {"ttft_s": 30}, "document": {"ttft_s": 30}},
        actions=[{"at_s": 3, "kill": {"pool": "unified"}}],
        checks=[{"metric": "ok_fraction", "at_least": 0.5}, {"metric": "actions_done", "at_least": 1}],
    )
    folder = tmp_path / "save"
    monkeypatch.setenv(MARK, str(folder))
    main([str(path), "--save", str(folder), "--port", "8391"])

    written = msgspec.json.decode((folder / "study.json").read_bytes())
    assert [each["verdict"] for each in written["checks"]] == ["met", "met"]
    assert any("unified" in note or "killed" in note for note in written["runs"][0]["notes"])
    assert len(read(folder / f"{WITHOUT}-1-1").table) > 5
    assert marked(str(folder)) == []

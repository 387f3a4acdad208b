"""How checks are judged over variants, loads and rounds, and what a study proves."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtests.live.outcome import StudyRun
from loadtests.live.study import Study
from loadtests.live.table import show
from loadtests.simulation.verdict import Verdict
from tests.loadtests.live.studies import WITH, WITHOUT, document, outcome_of, ran, ran_with, study, verdicts
from tests.tables import for_each

P99 = {"metric": "ttft_p99_s", "variant": WITH, "against": WITHOUT, "at_most": 0.8}
GOODPUT = {"metric": "goodput_fraction", "at_least": 0.9}


@for_each(
    ("check", "ours", "theirs", "is_met"),
    [
        (P99, 0.8, 1.0, True),
        (P99, 0.9, 1.0, False),
        (GOODPUT | {"variant": WITH}, 0.9, 0.1, True),
        (GOODPUT | {"variant": WITH}, 0.89, 1.0, False),
        (GOODPUT | {"against": WITHOUT, "difference": True, "at_least": 0.3}, 0.8, 0.5, True),
        (GOODPUT | {"against": WITHOUT, "difference": True, "at_least": 0.31}, 0.8, 0.5, False),
        ({"metric": "left_open_requests", "variant": WITH, "at_most": 0}, 1.0, 0.0, False),
    ],
)
def test_every_kind_of_check_can_be_met_and_missed(
    check: dict[str, Any], ours: float, theirs: float, is_met: bool, tmp_path: Path
) -> None:
    name = check["metric"]
    outcome = outcome_of(
        study(tmp_path, checks=[check]), ran(WITHOUT, metrics={name: theirs}), ran(WITH, metrics={name: ours})
    )

    assert list(verdicts(outcome).values()) == ["met" if is_met else "missed"]
    assert outcome.verdict is (Verdict.PASS if is_met else Verdict.FAIL)


def test_a_check_without_a_variant_and_a_load_is_about_all_but_the_one_that_it_compares_with(tmp_path: Path) -> None:
    checks = [GOODPUT, GOODPUT | {"load": 2}, GOODPUT | {"against": WITHOUT}]
    runs = [ran(name, each, metrics={"goodput_fraction": 1.0}) for name in (WITHOUT, WITH) for each in (1.0, 2.0)]
    outcome = outcome_of(study(tmp_path, loads=[1, 2], checks=checks), *runs)
    about = [text.partition(":")[0] for text in verdicts(outcome)]

    assert about[:4] == [f"{WITHOUT} at 1", f"{WITH} at 1", f"{WITHOUT} at 2", f"{WITH} at 2"]
    assert about[4:] == [f"{WITH} at 1", f"{WITH} at 2"]


def test_a_percentile_is_that_of_the_requests_of_all_rounds_and_the_rest_a_mean(tmp_path: Path) -> None:
    slow, quick = [1.0] * 600, [0.1] * 600
    runs = [ran_with(WITH, quick, 1), ran_with(WITH, slow, 2), ran_with(WITHOUT, slow, 1), ran_with(WITHOUT, slow, 2)]
    outcome = outcome_of(study(tmp_path, seeds=[1, 2], checks=[P99, GOODPUT | {"variant": WITH}]), *runs)
    metrics = outcome.metrics()[WITH, 1.0]["all"]

    assert (metrics["ttft_p99_s"].value, metrics["ttft_p99_s"].samples) == (1.0, 1200)
    assert metrics["goodput_fraction"].value == pytest.approx(0.5)
    assert metrics["offered_rps"].value == pytest.approx(600 / 55)
    (text, _) = verdicts(outcome)
    assert "by round: 0.1, 1" in text


@for_each(
    ("runs", "verdict"),
    [
        ([ran(WITH, metrics={"goodput_fraction": 1.0})], "met"),
        ([ran(WITHOUT, metrics={"goodput_fraction": 1.0})], None),
        ([ran(WITH)], "not judged"),
    ],
    ids=["it ran", "it did not run", "nothing was measured"],
)
def test_what_did_not_run_or_has_no_metric_is_not_judged(
    runs: list[StudyRun], verdict: str | None, tmp_path: Path
) -> None:
    outcome = outcome_of(study(tmp_path), *runs)

    assert list(verdicts(outcome).values()) == ([verdict] if verdict else [])
    assert outcome.verdict is (Verdict.PASS if verdict == "met" else Verdict.INVALID)


def test_a_comparison_without_its_other_side_and_a_p99_of_few_requests_are_not_judged(tmp_path: Path) -> None:
    alone = outcome_of(study(tmp_path, checks=[P99]), ran(WITH, metrics={"ttft_p99_s": 0.1}))
    few = outcome_of(study(tmp_path, checks=[P99]), ran_with(WITH, [0.1] * 99, 1), ran_with(WITHOUT, [0.1] * 99, 1))

    assert [each.problem for each in alone.results()] == [f"needs runs of {WITHOUT} to compare with"]
    assert "it takes 1,000" in few.results()[0].problem


def test_runs_that_are_all_invalid_prove_nothing(tmp_path: Path) -> None:
    well, late = (
        ran(WITH, metrics={"goodput_fraction": 1.0}),
        ran(WITH, problems=("late",), metrics={"goodput_fraction": 1.0}),
    )

    assert outcome_of(study(tmp_path), late).verdict is Verdict.INVALID
    assert outcome_of(study(tmp_path), late, well).verdict is Verdict.PASS


def simulated(folder: Path, **check: Any) -> Study:
    return study(folder, simulated={"profile": "h100-llama3-8b"}, checks=[check])


def test_a_run_is_held_against_the_same_plan_in_virtual_time(tmp_path: Path) -> None:
    asked = simulated(tmp_path, metric="ttft_p50_s", simulated=True, at_least=0.85, at_most=1.15)
    runs = [
        ran(name, metrics={"ttft_p50_s": value})
        for name, value in (
            (WITHOUT, 0.2),
            (f"{WITHOUT}, simulated", 0.22),
            (WITH, 0.2),
            (f"{WITH}, simulated", 0.1),
        )
    ]
    outcome = outcome_of(asked, *runs)

    assert list(verdicts(outcome).values()) == ["met", "missed"]
    assert next(iter(verdicts(outcome))).startswith(f"{WITHOUT}, simulated at 1: ttft_p50_s of all / {WITHOUT}'s")


def test_a_check_that_does_not_name_them_is_not_about_runs_in_virtual_time(tmp_path: Path) -> None:
    asked = simulated(tmp_path, metric="goodput_fraction", at_least=0.9)
    runs = [ran(name, metrics={"goodput_fraction": 1.0}) for name in (WITH, f"{WITH}, simulated")]

    assert [text.partition(" at")[0] for text in verdicts(outcome_of(asked, *runs))] == [WITH]


def test_a_run_in_virtual_time_does_not_make_an_invalid_study_valid(tmp_path: Path) -> None:
    asked = simulated(tmp_path, metric="goodput_fraction", at_least=0.9)
    late = ran(WITH, problems=("late",), metrics={"goodput_fraction": 1.0})
    other = ran(f"{WITH}, simulated", metrics={"goodput_fraction": 1.0})

    assert outcome_of(asked, late, other).verdict is Verdict.INVALID


def test_a_check_of_users_whom_a_variant_has_not_is_not_about_it(tmp_path: Path) -> None:
    chats = {"workload": {"classes": [document()["workload"]["classes"][0]]}}
    check = {"metric": "goodput_fraction", "class": "document", "at_least": 0.9}
    asked = study(tmp_path, variants={WITHOUT: {}, WITH: chats}, checks=[check])

    assert len(verdicts(outcome_of(asked, ran(WITHOUT), ran(WITH)))) == 1


def test_a_note_stands_once_after_all_that_it_is_about(tmp_path: Path) -> None:
    runs = [
        ran(WITHOUT, seed=1, notes=("all",)),
        ran(WITHOUT, seed=2, notes=("all",)),
        ran(WITH, seed=1, notes=("all", "one")),
        ran(WITH, seed=2),
    ]

    assert outcome_of(study(tmp_path), *runs).notes() == [
        f"{WITHOUT}; {WITH} at 1, seed 1: all",
        f"{WITH} at 1, seed 1: one",
    ]


def test_the_table_has_a_column_for_each_variant_and_says_what_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        ran(WITHOUT, metrics={"goodput_fraction": 0.25, "ttft_p50_s": 0.2}),
        ran(WITH, problems=("[late]",), metrics={"goodput_fraction": 1.0}),
        ran(WITH, seed=2, metrics={"goodput_fraction": 1.0}),
    ]
    show(outcome_of(study(tmp_path, shown={"all": ["goodput_fraction", "ttft_p50_s"]}), *runs), Console(width=160))
    out = capsys.readouterr().out

    assert "capacity 10.0 requests/s" in out
    assert WITHOUT in out
    assert "200.0 ms" in out
    assert f"{WITH} at 1, seed 1: INVALID: [late]" in out
    assert "met, it was 1" in out

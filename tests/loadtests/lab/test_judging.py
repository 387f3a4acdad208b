"""Policies held against each other by marks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from loadtests.lab import run_suite
from loadtests.lab.suite.differences import differences, with_share, worst_lines
from loadtests.lab.suite.judging import JudgedMark, judge
from loadtests.lab.suite.marks import Marks, read_marks
from loadtests.lab.suite.suite_file import read_suite
from loadtests.lab.suite.suite_report import FIGURES, PAGE, judgement_parts, write_report
from loadtests.lab.suite.suite_runs import SuiteRuns
from policies.errors import ConfigError
from tests.tables import for_each

SEEDS = range(7)
MARKS = Marks.model_validate(
    {
        "version": 1,
        "policy": "ours",
        "against": ["edf", "random"],
        "confidence": 0.95,
        "no_worse": {"than": -0.02, "in_fraction_of_cells": 0.9},
        "never_below": -0.05,
        "gain": {"family": "chat", "at_least": 0.05, "against": ["random"]},
        "worst_shown": 3,
    }
)
NOISE = np.random.default_rng(7).normal(0, 0.004, (40, 2, len(SEEDS)))


def runs_of(ours: Sequence[float], edf: float = 0.7, random: float = 0.6, noise: float = 1.0) -> pd.DataFrame:
    """Runs of three policies on cells in which ours has these goodputs; the first half of them is of chats."""
    rows = []
    for number, goodput in enumerate(ours):
        cell = {"cell": f"cell-{number}", "family": "chat" if number < len(ours) / 2 else "code", "load": 1.0}
        for policy, mean in (("ours", goodput), ("edf", edf), ("random", random)):
            for seed in SEEDS:
                own = noise * NOISE[number, 0, seed] * (policy == "ours")
                rows.append({**cell, "policy": policy, "seed": seed, "goodput_fraction": mean + own})
    found = pd.DataFrame(rows)
    return with_share(found.assign(offered_requests=100, longest_tenth_goodput_fraction=0.5, problems=""))


def verdicts(judged: Sequence[JudgedMark]) -> dict[tuple[str, str], bool]:
    return {(mark.name.split(" ", 2)[1], mark.against): mark.is_met for mark in judged}


def test_a_policy_that_is_better_everywhere_meets_every_mark() -> None:
    judged = judge(runs_of([0.8] * 20), MARKS)

    assert verdicts(judged) == {
        ("worse", "edf"): True,
        ("cell", "edf"): True,
        ("worse", "random"): True,
        ("cell", "random"): True,
        ("gain", "random"): True,
    }


@for_each(
    ("ours", "missed"),
    [
        ([0.8] * 18 + [0.69, 0.60], {("cell", "edf")}),
        ([0.8] * 17 + [0.66] * 3, {("worse", "edf")}),
        ([0.64] * 10 + [0.9] * 10, {("worse", "edf"), ("cell", "edf"), ("gain", "random")}),
    ],
)
def test_a_mark_is_missed_by_the_cells_that_it_is_about(ours: list[float], missed: set[tuple[str, str]]) -> None:
    assert {name for name, is_met in verdicts(judge(runs_of(ours), MARKS)).items() if not is_met} == missed


def test_more_marks_ask_for_more_certainty() -> None:
    """1.4 points behind: no worse by 2 points at 95% for a mark alone, but not for four such marks."""
    marks = {mark.against: mark for mark in judge(runs_of([0.686] * 20), MARKS) if mark.name.startswith("no worse")}

    assert marks["edf"].p is not None
    assert 0.025 / 3 < marks["edf"].p < 0.025
    assert [marks["edf"].allowed_p, marks["random"].allowed_p] == pytest.approx([0.025, 0.025 / 3])
    assert marks["edf"].is_met
    many = MARKS.model_copy(update={"against": ("edf", "random", "edf-2", "edf-3")})
    found = runs_of([0.686] * 20)
    twins = [found[found["policy"] == "edf"].assign(policy=name) for name in ("edf-2", "edf-3")]
    assert not any(
        mark.is_met
        for mark in judge(pd.concat([found, *twins]), many)
        if mark.name.startswith("no worse") and mark.against.startswith("edf")
    )


def test_users_who_wait_for_answers_are_no_better_off_for_wanting_less() -> None:
    found = with_share(
        pd.DataFrame(
            {
                "cell": "one",
                "family": "chat",
                "policy": ["quick", "slow"],
                "seed": 1,
                "offered_requests": [200, 100],
                "goodput_fraction": [0.8, 0.9],
            }
        )
    )

    assert found["goodput"].tolist() == pytest.approx([0.8, 0.45])


def test_the_worst_cells_come_first() -> None:
    differing = differences(runs_of([0.8, 0.5, 0.75, 0.7], noise=0), "ours", ["edf", "random"])

    assert worst_lines(differing, 2) == [
        "cell-1, against edf: -0.200 [-0.200, -0.200]",
        "cell-1, against random: -0.100 [-0.100, -0.100]",
    ]


@for_each(
    ("changes", "field"),
    [
        ({"policy": "nobody"}, "marks.policy"),
        ({"against": ("edf", "nobody")}, "marks.against"),
        ({"gain": MARKS.gain.model_copy(update={"family": "nobody"})}, "marks.gain.family"),
    ],
)
def test_marks_for_what_was_not_run_can_not_be_judged(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        judge(runs_of([0.8] * 2), MARKS.model_copy(update=changes))

    assert caught.value.field == field


def test_without_seeds_enough_for_an_interval_nothing_is_judged() -> None:
    found = runs_of([0.8] * 2)

    with pytest.raises(ConfigError, match="at least 5, or there are no intervals"):
        judge(found[found["seed"] < 4], MARKS)


def test_the_report_has_marks_families_worst_cells_and_figures(tmp_path: Path) -> None:
    found = runs_of([0.8, 0.5, 0.75, 0.7])

    write_report(tmp_path, found, list(judgement_parts(found, MARKS, judge(found, MARKS))), Console(quiet=True))

    page = (tmp_path / PAGE).read_text()
    assert "no cell below -5%" in page
    assert "FAIL" in page
    assert "cell-1, against edf: -0.2" in page
    assert "chat: goodput of the longest tenth" in (tmp_path / FIGURES).read_text()


def test_the_marks_of_the_project_are_about_its_suite() -> None:
    marks, suite = read_marks(), read_suite()

    marks.require_known([marks.policy, *suite.policies], suite.families)


@for_each(("goodput", "problems", "status"), [(0.8, "", 0), (0.5, "", 1), (0.8, "seed 1: nothing was wanted", 2)])
def test_the_exit_status_says_whether_every_mark_is_met(
    goodput: float, problems: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = runs_of([goodput] * 4).replace({"family": {"chat": "ragged", "code": "days"}})
    found["policy"] = found["policy"].replace({"ours": "lmetric", "random": "power-of-two"})
    monkeypatch.setattr(SuiteRuns, "of", lambda *_: found.assign(problems=problems))
    marks = tmp_path / "marks.yaml"
    marks.write_text(
        "{version: 1, policy: lmetric, against: [edf, power-of-two], confidence: 0.95, worst_shown: 1,"
        " never_below: -0.05, no_worse: {than: -0.02, in_fraction_of_cells: 0.95},"
        " gain: {family: ragged, at_least: 0.05, against: [power-of-two]}}"
    )
    chosen = ["--where", "family=ragged", "load=1", "--marks", str(marks), "--output", str(tmp_path)]

    assert run_suite.main(chosen) == status

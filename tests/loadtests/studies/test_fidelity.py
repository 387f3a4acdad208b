"""The comparison's arithmetic, on runs whose metrics are known, and the studies that its command line asks for."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.live.runner import Options
from loadtests.live.study import Study
from loadtests.studies.fidelity import __main__ as command
from loadtests.studies.fidelity.pairs import SHOWN, Pair, goals_of, pairs_of
from loadtests.studies.fidelity.rows import ranking_of, rows_of, summaries_of
from tests.loadtests.live.studies import ran
from tests.loadtests.live_scenarios import health
from tests.tables import for_each

RAGGED = "poisson ragged"
GOALS = {(RAGGED, "tpot_p50_s"): 0.05}


def run_of(
    value: float, *, variant: str = RAGGED, load: float = 0.3, completed: float = 1.0, **changes: Any
) -> StudyRun:
    return ran(variant, load, metrics=dict.fromkeys(SHOWN, value) | {"ok_fraction": completed}, **changes)


def pair(measured: float = 1.0, simulated: float = 1.0, **changes: Any) -> Pair:
    return Pair(measured=run_of(measured, **changes), simulated=run_of(simulated))


def test_errors_are_taken_round_by_round_before_their_median() -> None:
    """Rounds have plans of their own: the slowest real round is to be held against the same plan simulated."""
    rows = rows_of("vllm", [pair(1.0, 1.1, seed=1), pair(10.0, 10.0, seed=2), pair(4.0, 3.0, seed=3)], GOALS)

    first = rows[0]
    assert (first.measured, first.measured_range, first.simulated) == (4.0, (1.0, 10.0), 3.0)
    assert first.error == pytest.approx(0.0)
    assert first.error_range == pytest.approx((-0.25, 0.1))
    assert [row.metric for row in rows] == list(SHOWN)
    assert [row.goal for row in rows if row.metric != "tpot_p50_s"] == [None] * (len(SHOWN) - 1)


@for_each(("simulated", "verdict"), [(1.05, "met"), (0.95, "met"), (1.0501, "missed"), (0.5, "missed")])
def test_a_goal_is_met_up_to_its_limit_on_both_sides(simulated: float, verdict: str) -> None:
    (row,) = [row for row in rows_of("vllm", [pair(1.0, simulated)], GOALS) if row.metric == "tpot_p50_s"]

    assert abs(row.error) == pytest.approx(abs(simulated - 1))
    assert row.verdict == verdict or math.isclose(abs(row.error), 0.05)


WRONG = health(wrong_lengths=1)


@for_each(
    ("spoilt", "because"),
    [
        (pair(problems=("requests were sent 11.0 ms late (99th percentile; allowed: 10.0 ms): why",)), "11.0 ms late"),
        (pair(health=WRONG), "1 answers of a wrong length"),
        (pair(completed=0.99), "99.0% completed"),
    ],
)
def test_a_run_that_measured_something_else_is_marked_and_not_hidden(spoilt: Pair, because: str) -> None:
    """Each reason by itself makes a run invalid; its metrics stay in the table."""
    (reason,) = spoilt.invalid_because
    assert reason.endswith(because)
    assert "INVALID" in rows_of("vllm", [spoilt], GOALS)[0].verdict
    assert rows_of("vllm", [spoilt, pair()], GOALS)[2].verdict == "met"
    assert pair().invalid_because == ()


def test_a_summary_has_the_median_the_worst_and_the_bias() -> None:
    """Over loads; a positive bias is a simulator that is too slow."""
    pairs = [pair(1.0, 1.02, load=0.3), pair(1.0, 0.9, load=0.6), pair(1.0, 1.04, load=0.85)]
    summary = next(each for each in summaries_of(rows_of("vllm", pairs, GOALS)) if each.metric == "tpot_p50_s")

    assert (summary.median, summary.worst, summary.bias) == pytest.approx((0.04, 0.1, 0.02))
    assert (summary.met, summary.rows) == (2, 3)


def test_the_same_order_is_a_tau_of_one_and_the_reverse_of_minus_one() -> None:
    """However far the simulator's values are off."""
    names = ("a", "b", "c", "d")
    same = [pair(number, 10 * number, variant=name) for number, name in enumerate(names, start=1)]
    reverse = [pair(number, 10 - number, variant=name) for number, name in enumerate(names, start=1)]

    assert ranking_of(same, "ttft_p99_s").tau == pytest.approx(1.0)
    assert ranking_of(reverse, "ttft_p99_s").tau == pytest.approx(-1.0)
    assert [name for name, _ in ranking_of(reverse, "ttft_p99_s").simulated] == ["d", "c", "b", "a"]


def test_variants_that_change_places_from_round_to_round_are_within_noise() -> None:
    """``c`` is the worst in both rounds; which of ``a`` and ``b`` is better nobody knows."""
    pairs = [
        *(pair(value, 1.0, variant="a", seed=seed) for seed, value in ((1, 1.0), (2, 2.0))),
        *(pair(value, 2.0, variant="b", seed=seed) for seed, value in ((1, 1.5), (2, 1.5))),
        *(pair(value, 1.5, variant="c", seed=seed) for seed, value in ((1, 4.0), (2, 5.0))),
    ]
    ranking = ranking_of(pairs, "ttft_p99_s")

    assert (ranking.pairs, ranking.separable, ranking.agreed) == (3, 2, 1)


def asked(*arguments: str) -> dict[str, Study]:
    options = command.parse(arguments)
    return {part: command.study_of(part, options) for part in options.part}


def test_goals_are_the_limits_that_the_studies_check() -> None:
    goals = {part: goals_of(StudyOutcome(study)) for part, study in asked().items()}

    assert {part: len(each) for part, each in goals.items()} == {
        "vllm": 15,
        "handoff": 0,
        "emulated": 15,
        "balancers": 25,
    }
    assert goals["vllm"][RAGGED, "tpot_p50_s"] == 0.05
    assert goals["balancers"]["random", "ttft_p99_s"] == 0.25


def test_the_command_line_says_how_much_of_the_studies_is_run() -> None:
    quick, longer = asked("--quick", "--profile", "h100-llama3-8b"), asked("--rounds", "5", "--seconds", "30")

    assert {(study.loads, study.seeds, study.duration_s) for study in quick.values()} == {
        ((0.6,), (1,), 8.0),
        ((0.85,), (1,), 8.0),
    }
    assert [study.simulated.profile for study in quick.values() if study.simulated] == ["h100-llama3-8b"] * 4
    assert {(study.seeds, study.duration_s) for study in longer.values()} == {((1, 2, 3, 4, 5), 30.0)}


def finds(study: Study, _options: Options, outcome: StudyOutcome) -> None:
    variant = next(iter(study.variants))
    outcome.runs += [run_of(1.0, variant=variant), run_of(1.1, variant=f"{variant}, simulated", notes=("a hop",))]


def finds_nothing_valid(study: Study, options: Options, outcome: StudyOutcome) -> None:
    finds(study, options, outcome)
    record = msgspec.structs.replace(outcome.runs[0].saved.record, problems=("late",))
    late = msgspec.structs.replace(outcome.runs[0].saved, record=record)
    outcome.runs[0] = StudyRun(variant=RAGGED, load=0.3, seed=1, saved=late)


def fails(*_: object) -> None:
    raise RuntimeError("a deployment did not start")


def is_interrupted(study: Study, options: Options, outcome: StudyOutcome) -> None:
    finds(study, options, outcome)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("run", "status", "says"),
    [
        (finds, 0, "+10% (+10% to +10%)"),
        (finds_nothing_valid, 2, "INVALID: late"),
        (fails, 2, "a deployment did not start"),
        (is_interrupted, 130, "interrupted"),
    ],
)
def test_the_exit_status_says_whether_anything_valid_was_measured(  # noqa: PLR0917 - fixtures
    run: Any,
    status: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "run_study", run)
    file = tmp_path / "fidelity.json"

    assert command.main(["--part", "vllm", "--json", str(file)]) == status
    assert says in " ".join(capsys.readouterr().out.split())
    if run is finds:
        written = json.loads(file.read_text())
        assert {pair["variant"] for pair in written["studies"]["vllm"]["runs"]} == {RAGGED, f"{RAGGED}, simulated"}
        assert len(written["rows"]) == len(SHOWN)


def test_a_run_whose_counterpart_is_missing_makes_no_pair() -> None:
    (study,) = asked("--part", "vllm").values()

    assert pairs_of(StudyOutcome(study, runs=[run_of(1.0)])) == []

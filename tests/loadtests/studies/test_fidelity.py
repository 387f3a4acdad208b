"""The comparison's arithmetic, on runs whose figures are known."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cluster.sim.run_table import RunRecorder, RunTable
from cluster.sim.traffic import PlannedRequest
from loadtests.results.client_health import ClientHealth
from loadtests.studies.fidelity import __main__ as fidelity
from loadtests.studies.fidelity.__main__ import Findings, as_document, as_markdown, print_findings, study_of
from loadtests.studies.fidelity.figures import (
    GOALS,
    Pair,
    completed_fraction,
    completions_per_s,
    figures_of,
    ranking_of,
    rows_of,
    signed_error,
    summaries_of,
)
from loadtests.studies.fidelity.plans import LARGE, RAGGED, SESSIONS, TINY, WORKLOADS, Shape, flood_of, workload_of
from loadtests.studies.fidelity.runs import Capacity, Target, fleet_of
from loadtests.studies.fidelity.tables import RESULTS, markdown_table, result_cells
from loadtests.studies.microbench.front_cost import NO_COST, FrontCost
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind
from tests.cluster.simulated import PROFILE, fleet
from tests.loadtests.sample_workloads import COMPLETED, requests_of

REFUSED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED)
HEALTHY = ClientHealth(
    sent=10,
    send_lag_p99_s=0.001,
    cpu_fraction=0.2,
    achieved_fraction=1.0,
    wrong_lengths=0,
    cached_tokens=0,
    errors={},
)


def table_of(*requests: tuple[float, float, float, int], outcome: Outcome = COMPLETED) -> RunTable:
    """Rows of (scheduled, first token, last token, output tokens)."""
    recorder = RunRecorder(("all",))
    for intent, (scheduled_s, first_s, end_s, tokens) in enumerate(requests):
        planned = PlannedRequest(
            request_id=str(intent),
            intent=intent,
            scheduled_s=scheduled_s,
            prompt_tokens=10,
            output_tokens=tokens,
            max_output_tokens=tokens,
            timeout_s=10.0,
        )
        recorder.add(
            planned,
            sent_s=scheduled_s,
            first_token_s=first_s,
            end_s=end_s,
            output_tokens=tokens,
            outcome=outcome,
            num_attempts=1,
            is_last=True,
        )
    return recorder.table(())


def figures(value: float) -> dict[str, float]:
    return dict.fromkeys(GOALS, value)


def pair(
    measured: float = 1.0,
    simulated: float = 1.0,
    *,
    seed: int = 1,
    variant: str = "",
    part: str = "vllm",
    load: float = 0.3,
    health: ClientHealth = HEALTHY,
    completed: float = 1.0,
    foreign: float = 0.0,
) -> Pair:
    return Pair(
        part=part,
        workload=RAGGED,
        load=load,
        variant=variant,
        seed=seed,
        requests=10,
        measured=figures(measured),
        simulated=figures(simulated),
        completed=completed,
        cached_fraction=(0.0, 0.0),
        foreign_fraction=foreign,
        health=health,
    )


def test_latencies_count_from_the_scheduled_time_and_tpot_from_the_first_token() -> None:
    """Two equal requests, so that every percentile is the same."""
    figures = figures_of(table_of((1.0, 1.2, 2.2, 11), (3.0, 3.2, 4.2, 11)))

    assert (figures["TTFT p50"], figures["TTFT p99"]) == pytest.approx((0.2, 0.2))
    assert figures["TPOT p50"] == pytest.approx(0.1)
    assert (figures["E2E p50"], figures["E2E p99"]) == pytest.approx((1.2, 1.2))
    assert figures["throughput"] == pytest.approx(22 / 4.2)


def test_one_token_has_no_time_per_token() -> None:
    """It is undefined and not 0, or short answers would make a service look quick."""
    figures = figures_of(table_of((0.0, 0.1, 0.1, 1), (0.0, 0.1, 0.5, 5)))

    assert figures["TPOT p50"] == pytest.approx(0.1)


def test_what_did_not_complete_has_no_latency_and_lowers_the_completed_share() -> None:
    """A run with refusals says so."""
    table = table_of((0.0, math.nan, 0.1, 0), outcome=REFUSED)

    assert math.isnan(figures_of(table)["E2E p50"])
    assert completed_fraction(table) == 0.0


def test_capacity_counts_what_completed_between_two_moments() -> None:
    """Neither the start, when the batch fills, nor what comes after the flood."""
    table = table_of(*((0.0, 0.1, end_s, 2) for end_s in (0.5, 4.0, 5.0, 6.0, 7.9, 8.0, 9.0)))

    assert completions_per_s(table, 4.0, 8.0) == pytest.approx(1.0)


def test_a_simulator_that_is_too_slow_has_a_positive_error() -> None:
    assert signed_error(1.1, 1.0) == pytest.approx(0.1)
    assert signed_error(0.9, 1.0) == pytest.approx(-0.1)
    assert math.isnan(signed_error(1.0, 0.0))


def test_errors_are_taken_round_by_round_before_their_median() -> None:
    """Rounds have plans of their own: the slowest real round is to be held against the same plan simulated."""
    rows = rows_of([pair(1.0, 1.1, seed=1), pair(10.0, 10.0, seed=2), pair(4.0, 3.0, seed=3)])

    first = rows[0]
    assert (first.measured, first.measured_range, first.simulated) == (4.0, (1.0, 10.0), 3.0)
    assert first.error == pytest.approx(0.0)
    assert first.error_range == pytest.approx((-0.25, 0.1))
    assert [row.metric for row in rows] == list(GOALS)


@pytest.mark.parametrize(("simulated", "verdict"), [(1.05, "met"), (0.95, "met"), (1.0501, "missed"), (0.5, "missed")])
def test_a_goal_is_met_up_to_its_limit_on_both_sides(simulated: float, verdict: str) -> None:
    """TPOT's is 5 %."""
    (row,) = [row for row in rows_of([pair(1.0, simulated)]) if row.metric == "TPOT p50"]

    assert abs(row.error) == pytest.approx(abs(simulated - 1))
    assert row.verdict == verdict or math.isclose(abs(row.error), 0.05)


def test_where_nothing_was_measured_no_goal_is_met() -> None:
    """NaN is within no limit."""
    assert {row.verdict for row in rows_of([pair(0.0, 0.0)]) if row.goal} == {"missed"}


def test_without_goals_there_is_no_verdict() -> None:
    """The part in which two engines share two cores is shown and not judged."""
    assert {row.verdict for row in rows_of([pair(1.0, 5.0)], has_goals=False)} == {""}


@pytest.mark.parametrize(
    ("spoilt", "because"),
    [
        (pair(health=replace(HEALTHY, send_lag_p99_s=0.011)), "send lag"),
        (pair(health=replace(HEALTHY, cpu_fraction=0.8)), "client CPU"),
        (pair(health=replace(HEALTHY, achieved_fraction=0.98)), "of the rate"),
        (pair(health=replace(HEALTHY, wrong_lengths=1)), "wrong length"),
        (pair(completed=0.99), "completed"),
        (pair(foreign=0.06), "other work"),
    ],
)
def test_a_run_that_measured_its_client_is_marked_and_not_hidden(spoilt: Pair, because: str) -> None:
    """Each limit by itself makes a run invalid; its figures stay in the table."""
    (reason,) = spoilt.invalid_because
    assert because in reason
    assert "INVALID" in rows_of([spoilt])[0].verdict
    assert rows_of([spoilt, pair()])[0].verdict == "met"
    assert pair().invalid_because == ()


def test_a_lag_of_one_percent_of_a_long_ttft_does_no_harm() -> None:
    """Eleven milliseconds are much for an idle service and nothing for one whose first token takes two seconds."""
    late = replace(HEALTHY, send_lag_p99_s=0.011)

    assert pair(1.0, health=late).invalid_because != ()
    assert pair(1.2, health=late).invalid_because == ()


def test_a_summary_has_the_median_the_worst_and_the_bias() -> None:
    """Over loads; a positive bias is a simulator that is too slow."""
    rows = rows_of([pair(1.0, 1.02, load=0.3), pair(1.0, 0.9, load=0.6), pair(1.0, 1.04, load=0.85)])
    summary = next(each for each in summaries_of(rows) if each.metric == "TPOT p50")

    assert (summary.median, summary.worst, summary.bias) == pytest.approx((0.04, 0.1, 0.02))
    assert (summary.met, summary.rows) == (2, 3)


def test_the_same_order_is_a_tau_of_one_and_the_reverse_of_minus_one() -> None:
    """However far the simulator's values are off."""
    names = ("a", "b", "c", "d")
    same = [pair(number, 10 * number, variant=name) for number, name in enumerate(names, start=1)]
    reverse = [pair(number, 10 - number, variant=name) for number, name in enumerate(names, start=1)]

    assert ranking_of(same, "TTFT p99").tau == pytest.approx(1.0)
    assert ranking_of(reverse, "TTFT p99").tau == pytest.approx(-1.0)
    assert [name for name, _ in ranking_of(reverse, "TTFT p99").simulated] == ["d", "c", "b", "a"]


def test_one_swap_of_neighbours_among_five_is_a_tau_of_four_fifths() -> None:
    """Ten pairs, nine in order: (9 - 1) / 10."""
    simulated = {"a": 1, "b": 3, "c": 2, "d": 4, "e": 5}
    pairs = [pair(number, simulated[name], variant=name) for number, name in enumerate(simulated, start=1)]

    assert ranking_of(pairs, "TTFT p99").tau == pytest.approx(0.8)


def test_variants_that_change_places_from_round_to_round_are_within_noise() -> None:
    """``c`` is the worst in both rounds; which of ``a`` and ``b`` is better nobody knows."""
    pairs = [
        *(pair(value, 1.0, variant="a", seed=seed) for seed, value in ((1, 1.0), (2, 2.0))),
        *(pair(value, 2.0, variant="b", seed=seed) for seed, value in ((1, 1.5), (2, 1.5))),
        *(pair(value, 1.5, variant="c", seed=seed) for seed, value in ((1, 4.0), (2, 5.0))),
    ]
    ranking = ranking_of(pairs, "TTFT p99")

    assert (ranking.pairs, ranking.separable, ranking.agreed) == (3, 2, 1)


@pytest.mark.parametrize("shape", [TINY, LARGE])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_comes_at_the_rate_that_was_asked_for(name: str, shape: Shape) -> None:
    """Over a long time, bursts included, sessions counted by their turns: within a tenth, for a fixed seed."""
    workload = workload_of(name, shape, 20.0, 1500.0)
    requests = requests_of(*workload.classes, seed=11, duration_s=1500.0)
    turns = 4 if name == SESSIONS else 1

    assert len(requests) * turns / 1500.0 == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_flood_brings_the_same_users_at_another_rate(name: str) -> None:
    """The capacity that it measures is that of the workload."""
    plain = workload_of(name, TINY, 5.0, 60.0).classes[0]
    flood = flood_of(name, TINY, 50.0, 60.0).classes[0]
    lengths = [
        np.mean([request.prompt_tokens for request in requests_of(each, seed=2, duration_s=60.0)])
        for each in (plain, flood)
    ]

    assert lengths[0] == pytest.approx(lengths[1], rel=0.3)
    assert len(requests_of(flood, seed=2, duration_s=60.0)) > 5 * len(requests_of(plain, seed=2, duration_s=60.0))


def findings() -> Findings:
    pairs = [pair(1.0, 1.02), pair(2.0, 2.0, load=0.6, foreign=0.5)]
    ranked = [pair(1.0 + number, 1.0, variant=name, part="balancers") for number, name in enumerate(("x:A", "b"))]
    return Findings(pairs=[*pairs, *ranked], notes=["vllm: a note with [brackets]"])


def test_the_tables_say_what_was_met_missed_and_invalid() -> None:
    """For people, and in Markdown with the same number of columns in each line."""
    console = Console(width=200, record=True, quiet=False, file=Path("/dev/null").open("w"))  # noqa: SIM115
    print_findings(findings(), console)
    text = console.export_text()
    console.file.close()

    assert all(word in text for word in ("met", "missed", "INVALID: other work on 50%", "[brackets]", "A 1,000"))
    markdown = as_markdown(findings())
    assert "### vllm" in markdown
    for line in markdown_table(RESULTS, result_cells(findings().rows())).splitlines():
        assert line.count("|") == len(RESULTS) + 1


def test_the_document_holds_every_run_and_can_be_read_again() -> None:
    """JSON, for other programs."""
    document = json.loads(json.dumps(as_document(findings())))

    assert len(document["pairs"]) == 4
    assert document["pairs"][1]["invalid_because"] == ["other work on 50% of the cores"]
    assert document["rankings"][0]["tau"] is not None


ONE_POOL = {"applications": [{"args": {"pools": [{"role": "unified"}], "policies": {"planning": "always_unified"}}}]}


@pytest.mark.parametrize(("cpu_s", "of_the_hop_s"), [(0.003, 0.003), (0.020, 0.007), (0.0, 0.0)])
def test_processor_time_and_delays_of_a_small_request_are_its_hop_together(cpu_s: float, of_the_hop_s: float) -> None:
    spec = fleet_of(ONE_POOL, PROFILE, 0.007, FrontCost(cpu_s, 0.0004))

    assert spec.gateway_request_s == of_the_hop_s
    assert spec.gateway_request_s + spec.ingress_delay_s + 2 * spec.network_delay_s == pytest.approx(0.007)
    assert spec.gateway_chunk_s == 0.0004


class QuickRig:
    """A deployment that answers at once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.pinned = None
        self.hop_s = 0.001
        self.front = NO_COST
        self.fleet = fleet()

    def capacity(self, name: str, seconds: float) -> Capacity:
        return Capacity(measured_rps=10.0, simulated_rps=11.0)

    def compare(
        self, name: str, load: float, capacity_rps: float, *, seed: int, seconds: float, variant: str = ""
    ) -> Pair:
        return pair(part=self.target.part, load=load, seed=seed, variant=variant)


@pytest.mark.parametrize("parts", [["vllm"], ["balancers"], list(fidelity.PARTS)])
def test_a_study_starts_each_deployment_once_and_tells_every_step(
    parts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bar that stops before its end looks like a failure; so does one that goes past it."""
    started: list[tuple[str, str | None]] = []

    @contextmanager
    def start(target: Target, logs: Path, *, balancer: str | None = None) -> Iterator[QuickRig]:
        started.append((target.part, balancer))
        yield QuickRig(target)

    monkeypatch.setattr(fidelity, "rig_of", start)
    study = study_of(fidelity._parse(["--part", *parts, "--rounds", "2"]))
    told: list[str] = []
    found = Findings()
    fidelity.run(study, tmp_path, found, told.append)

    assert len(told) == study.steps
    plain = [(part, None) for part in parts if part != "balancers"]
    ranked = [("balancers", name) for name in study.balancers] if "balancers" in parts else []
    assert started == plain + ranked
    assert len(found.pairs) == 18 * len(plain) + 2 * len(ranked)


def test_quick_is_one_round_at_one_load() -> None:
    study = study_of(fidelity._parse(["--quick"]))

    assert set(study.rounds.values()) == {1}
    assert (len(study.loads), len(study.balancers)) == (1, 2)


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--seconds", "-1"], ["--part", "nonsense"]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fidelity.main(arguments)
    assert "allowed" in capsys.readouterr().err or "nonsense" in arguments


def test_a_profile_that_does_not_exist_ends_it_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and the names of those that do."""
    assert fidelity.main(["--part", "vllm", "--profile", "nonsense", "--json", str(tmp_path / "figures.json")]) == 2
    assert "h100-llama3-8b" in capsys.readouterr().out

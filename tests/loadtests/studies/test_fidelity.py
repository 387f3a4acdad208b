"""The comparison's arithmetic, on runs whose metrics are known."""

import math
from dataclasses import replace

import pytest

from cluster.sim.run_table import RunTable
from loadtests.live.counterpart import fleet_of
from loadtests.machine.gateway_overhead import GatewayOverhead
from loadtests.results.analysis import completions_per_s
from loadtests.results.client_health import ClientHealth
from loadtests.studies.fidelity.metrics import GOALS, Pair, completed_fraction, metrics_of
from loadtests.studies.fidelity.plans import LARGE, RAGGED, SESSIONS, TINY, WORKLOADS, Shape, workload_of
from loadtests.studies.fidelity.rows import ranking_of, rows_of, summaries_of
from tests.cluster.simulated import PROFILE
from tests.loadtests.live_scenarios import health
from tests.loadtests.run_tables import RequestRow, run_table
from tests.loadtests.sample_workloads import requests_of
from tests.tables import for_each

HEALTHY = health()


def table_of(*requests: tuple[float, float, float, int], outcome: str = "completed") -> RunTable:
    """Rows of (scheduled, first token, last token, output tokens)."""
    return run_table(
        *(
            RequestRow(
                logical_request=n,
                at_s=at_s,
                ttft_s=first_s - at_s,
                e2e_s=end_s - at_s,
                output_tokens=tokens,
                outcome=outcome,
            )
            for n, (at_s, first_s, end_s, tokens) in enumerate(requests)
        )
    )


def metrics(value: float) -> dict[str, float]:
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
        measured=metrics(measured),
        simulated=metrics(simulated),
        completed=completed,
        cached_fraction=(0.0, 0.0),
        foreign_fraction=foreign,
        health=health,
    )


def test_latencies_count_from_the_scheduled_time_and_tpot_from_the_first_token() -> None:
    """Two equal requests, so that every percentile is the same."""
    metrics = metrics_of(table_of((1.0, 1.2, 2.2, 11), (3.0, 3.2, 4.2, 11)))

    assert (metrics["TTFT p50"], metrics["TTFT p99"]) == pytest.approx((0.2, 0.2))
    assert metrics["TPOT p50"] == pytest.approx(0.1)
    assert (metrics["E2E p50"], metrics["E2E p99"]) == pytest.approx((1.2, 1.2))
    assert metrics["throughput"] == pytest.approx(22 / 4.2)


def test_what_did_not_complete_has_no_latency_and_lowers_the_completed_share() -> None:
    """A run with refusals says so."""
    table = table_of((0.0, math.nan, 0.1, 0), outcome="refused")

    assert math.isnan(metrics_of(table)["E2E p50"])
    assert completed_fraction(table) == 0.0


def test_capacity_counts_what_completed_between_two_moments() -> None:
    """Neither the start, when the batch fills, nor what comes after the flood."""
    table = table_of(*((0.0, 0.1, end_s, 2) for end_s in (0.5, 4.0, 5.0, 6.0, 7.9, 8.0, 9.0)))

    assert completions_per_s(table, 4.0, 8.0) == pytest.approx(1.0)


def test_errors_are_taken_round_by_round_before_their_median() -> None:
    """Rounds have plans of their own: the slowest real round is to be held against the same plan simulated."""
    rows = rows_of([pair(1.0, 1.1, seed=1), pair(10.0, 10.0, seed=2), pair(4.0, 3.0, seed=3)])

    first = rows[0]
    assert (first.measured, first.measured_range, first.simulated) == (4.0, (1.0, 10.0), 3.0)
    assert first.error == pytest.approx(0.0)
    assert first.error_range == pytest.approx((-0.25, 0.1))
    assert [row.metric for row in rows] == list(GOALS)


@for_each(("simulated", "verdict"), [(1.05, "met"), (0.95, "met"), (1.0501, "missed"), (0.5, "missed")])
def test_a_goal_is_met_up_to_its_limit_on_both_sides(simulated: float, verdict: str) -> None:
    """TPOT's is 5 %."""
    (row,) = [row for row in rows_of([pair(1.0, simulated)]) if row.metric == "TPOT p50"]

    assert abs(row.error) == pytest.approx(abs(simulated - 1))
    assert row.verdict == verdict or math.isclose(abs(row.error), 0.05)


@for_each(
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
    """Each limit by itself makes a run invalid; its metrics stay in the table."""
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


def test_variants_that_change_places_from_round_to_round_are_within_noise() -> None:
    """``c`` is the worst in both rounds; which of ``a`` and ``b`` is better nobody knows."""
    pairs = [
        *(pair(value, 1.0, variant="a", seed=seed) for seed, value in ((1, 1.0), (2, 2.0))),
        *(pair(value, 2.0, variant="b", seed=seed) for seed, value in ((1, 1.5), (2, 1.5))),
        *(pair(value, 1.5, variant="c", seed=seed) for seed, value in ((1, 4.0), (2, 5.0))),
    ]
    ranking = ranking_of(pairs, "TTFT p99")

    assert (ranking.pairs, ranking.separable, ranking.agreed) == (3, 2, 1)


@for_each("shape", [TINY, LARGE])
@for_each("name", WORKLOADS)
def test_a_workload_comes_at_the_rate_that_was_asked_for(name: str, shape: Shape) -> None:
    """Over a long time, bursts included, sessions counted by their turns: within a tenth, for a fixed seed."""
    workload = workload_of(name, shape, 20.0, 1500.0)
    requests = requests_of(*workload.classes, seed=11, duration_s=1500.0)
    turns = 4 if name == SESSIONS else 1

    assert len(requests) * turns / 1500.0 == pytest.approx(20.0, rel=0.1)


ONE_POOL = {"applications": [{"args": {"pools": [{"role": "unified"}], "policies": {"planning": "always_unified"}}}]}


@for_each(("cpu_s", "of_the_hop_s"), [(0.003, 0.003), (0.020, 0.007), (0.0, 0.0)])
def test_processor_time_and_delays_of_a_small_request_are_its_hop_together(cpu_s: float, of_the_hop_s: float) -> None:
    spec = fleet_of(ONE_POOL, PROFILE, 0.007, GatewayOverhead(cpu_s, 0.0004))

    assert spec.gateway_request_s == of_the_hop_s
    assert spec.gateway_request_s + spec.ingress_delay_s + 2 * spec.network_delay_s == pytest.approx(0.007)
    assert spec.gateway_chunk_s == 0.0004

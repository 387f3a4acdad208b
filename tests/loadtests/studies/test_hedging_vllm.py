"""What the checks of hedging on vLLM are held against, and what is deployed."""

import math
from dataclasses import replace
from typing import Any

import pytest

from loadtests.drivers.http_driver import HttpRun
from loadtests.studies.hedging_metrics import (
    BUDGET_FRACTION,
    CALM_LOOKS,
    WITH,
    WITHOUT,
    Calm,
    HedgingCell,
    cell_of,
    num_astray,
)
from loadtests.studies.hedging_verdicts import quantile_s, ratios, verdicts
from loadtests.watch.gateway_page import MetricsPage
from tests.loadtests.live_scenarios import health
from tests.loadtests.run_tables import RequestRow, run_table
from tests.tables import for_each

COUNTED = """
# TYPE spillway_requests counter
spillway_requests_total{outcome="completed",reason=""} 3.0
# TYPE spillway_attempts counter
spillway_attempts_total{hedge="false",replica="a"} 2.0
spillway_attempts_total{hedge="false",replica="b"} 1.0
spillway_attempts_total{hedge="true",replica="b"} 1.0
# TYPE spillway_replica_attempts counter
spillway_replica_attempts_total{pool="unified",replica="a"} 2.0
spillway_replica_attempts_total{pool="unified",replica="b"} 2.0
# TYPE spillway_replica_prompt_tokens counter
spillway_replica_prompt_tokens_total{pool="unified",replica="a"} 200.0
spillway_replica_prompt_tokens_total{pool="unified",replica="b"} 115.0
# TYPE spillway_hedge_races counter
spillway_hedge_races_total{hedge_won="true"} 1.0
# TYPE spillway_superseded_prompt_tokens counter
spillway_superseded_prompt_tokens_total 30.0
# TYPE spillway_cancel_seconds histogram
spillway_cancel_seconds_bucket{le="0.005"} 0.0
spillway_cancel_seconds_bucket{le="0.01"} 1.0
spillway_cancel_seconds_bucket{le="+Inf"} 1.0
spillway_cancel_seconds_count 1.0
spillway_cancel_seconds_sum 0.008
"""
TAKEN = 'attempts_total{pool="unified",replica="%s"}'
ONE_FEWER = f"{TAKEN % 'b'} 2.0", f"{TAKEN % 'b'} 1.0"


def a_cell(policy: str, slowest_s: float = 0.3, **changes: Any) -> HedgingCell:
    found = HedgingCell(
        policy=policy,
        seed=1,
        ttft_s=[0.05] * 90 + [slowest_s] * 10,
        requests=120,
        unanswered=0,
        hedges=4 if policy == WITH else 0,
        hedges_to_slow=1,
        hedges_won=3,
        firsts_won=1,
        duplicated=0.03,
        finished_twice=0.01,
        cancels=4,
        cancel_mean_s=0.002,
        cancel_most_s=0.01,
        astray=0,
        untaken=0,
        left_open=0,
        kv_left=0.0,
        episodes=3,
        foreign_fraction=0.01,
    )
    return replace(found, **changes)


def a_run(*outcomes: str, wrong_lengths: int = 0) -> HttpRun:
    """Requests of 100 tokens that come ten seconds apart; first tokens take half a second."""
    requests = [
        RequestRow(logical_request=number, at_s=10.0 * number, ttft_s=0.5, e2e_s=1.0, output_tokens=8, outcome=outcome)
        for number, outcome in enumerate(outcomes)
    ]
    return HttpRun(table=run_table(*requests, classes=("users",)), health=health(wrong_lengths=wrong_lengths))


def cell_from(run: HttpRun, text: str = COUNTED) -> HedgingCell:
    others = {"left_open": 0, "kv_left": 0.0, "episodes": 2, "foreign_fraction": 0.0}
    return cell_of(WITH, 1, run, MetricsPage.parse(text), slow_id="a", from_s=10.0, **others)


GOOD = [a_cell(WITHOUT, 1.5), a_cell(WITH)]


@for_each(
    ("found", "missed"),
    [
        (GOOD, []),
        ([GOOD[0], a_cell(WITH, 1.5)], ["TTFT p99"]),
        ([a_cell(WITHOUT, 0.2), GOOD[1]], ["TTFT p99"]),
        ([GOOD[0], a_cell(WITH, hedges=0)], ["second attempts"]),
        ([a_cell(WITHOUT, 1.5, hedges=1), GOOD[1]], ["second attempts, no_hedge"]),
        ([GOOD[0], a_cell(WITH, duplicated=2 * BUDGET_FRACTION)], ["beaten"]),
        ([a_cell(WITHOUT, 1.5, unanswered=1), GOOD[1]], ["not answered exactly once"]),
        ([GOOD[0], a_cell(WITH, astray=1)], ["did not run where"]),
        ([GOOD[0], a_cell(WITH, left_open=1)], ["requests left open"]),
        ([GOOD[0], a_cell(WITH, kv_left=0.01)], ["KV blocks"]),
    ],
    ids=["well", "no gain", "worse", "none", "unasked", "costly", "lost", "astray", "open", "held"],
)
def test_every_check_can_be_missed(found: list[HedgingCell], missed: list[str]) -> None:
    lines, are_met = verdicts(found)

    assert are_met is (not missed)
    assert [any(word in line for line in lines if line.endswith("MISSED")) for word in missed] == [True] * len(missed)
    assert sum(line.endswith("MISSED") for line in lines) == len(missed)


def test_a_p99_is_that_of_all_plans_together() -> None:
    cells = [a_cell(WITH, 0.3), a_cell(WITH, 0.1, seed=2), a_cell(WITHOUT, 9.0)]

    assert quantile_s(cells, WITH, 0.99) == 0.3
    assert math.isnan(quantile_s([], WITH, 0.99))


def test_ratios_are_between_runs_of_the_same_plan() -> None:
    cells = [a_cell(WITHOUT, 1.2), a_cell(WITHOUT, 0.6, seed=2), a_cell(WITH, 0.3, seed=2), a_cell(WITH, 0.3)]

    assert ratios(cells) == pytest.approx([0.25, 0.5])
    assert "by plan: 0.25, 0.50" in verdicts(cells)[0][0]


def test_what_is_measured_comes_after_the_policy_has_learned() -> None:
    cell = cell_from(a_run("completed", "completed", "completed"))

    assert (cell.ttft_s, cell.requests, cell.unanswered) == ([0.5, 0.5], 3, 0)
    assert (cell.hedges, cell.hedges_to_slow, cell.hedges_won, cell.firsts_won) == (1, 0, 1, 0)
    assert (cell.duplicated, cell.cancels, cell.cancel_mean_s, cell.cancel_most_s) == (0.1, 1, 0.008, 0.01)
    assert cell.finished_twice == pytest.approx(0.05)
    assert (cell.astray, cell.untaken) == (0, 0)


@for_each(
    ("run", "counted"),
    [
        (a_run("completed", "completed", "cancelled"), COUNTED.replace('reason=""} 3.0', 'reason=""} 2.0')),
        (a_run("completed", "completed", "completed", wrong_lengths=1), COUNTED),
        (a_run("completed", "completed", "completed"), COUNTED.replace('reason=""} 3.0', 'reason=""} 4.0')),
    ],
    ids=["given up", "too long", "answered twice"],
)
def test_a_request_is_answered_once_and_with_all_its_tokens_or_counts_as_unanswered(run: HttpRun, counted: str) -> None:
    assert cell_from(run, counted).unanswered == 1


def test_an_attempt_that_runs_elsewhere_than_it_was_sent_is_astray_twice() -> None:
    """One replica has one too few, another one too many."""
    assert num_astray(MetricsPage.parse(COUNTED)) == 0

    nobody_stopped = COUNTED.replace("seconds_count 1.0", "seconds_count 0.0")
    moved = nobody_stopped.replace(f"{TAKEN % 'a'} 2.0", f"{TAKEN % 'a'} 3.0").replace(*ONE_FEWER)
    assert num_astray(MetricsPage.parse(moved)) == 2


def test_an_attempt_that_is_stopped_at_once_may_never_get_to_its_replica() -> None:
    fewer = COUNTED.replace(*ONE_FEWER)
    cell = cell_from(a_run("completed", "completed", "completed"), fewer)

    assert (cell.astray, cell.untaken) == (0, 1)
    assert num_astray(MetricsPage.parse(fewer.replace("seconds_count 1.0", "seconds_count 0.0"))) == 1


def test_a_deployment_is_calm_when_nothing_has_changed_for_so_long_that_every_report_is_in() -> None:
    """Between two requests a replica's last report may be one of an idle replica."""
    looks = [f"spillway_requests_open 0\nspillway_replica_attempts_total {number}\n" for number in (5.0, 6.0)]
    before, after = map(MetricsPage.parse, looks)
    calm = Calm()

    assert [calm(before) for _ in range(CALM_LOOKS)] == [False] * CALM_LOOKS
    assert [calm(after) for _ in range(CALM_LOOKS + 1)] == [False] * CALM_LOOKS + [True]
    assert not calm(MetricsPage.parse(looks[1].replace("open 0", "open 1")))

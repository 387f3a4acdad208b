"""What the marks of hedging on vLLM are held against, and what is deployed."""

import io
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from cluster import Seeds
from cluster.sim.run_table import RunRecorder
from cluster.sim.traffic import PlannedRequest
from deployments.app import check_policies, read_config
from deployments.gateway.reloading import laid_over, user_config_in
from loadtests.drivers.completions import COMPLETED, GAVE_UP
from loadtests.drivers.http_driver import HttpRun
from loadtests.results.client_health import ClientHealth
from loadtests.studies import hedging_vllm
from loadtests.studies.hedging_figures import (
    BUDGET_FRACTION,
    CALM_LOOKS,
    WITH,
    WITHOUT,
    Calm,
    Cell,
    cell_of,
    is_at_rest,
    num_astray,
    quantile_s,
    ratios,
    table_of,
    verdicts,
)
from loadtests.studies.hedging_vllm import LEARNS_S, SLOW, document_of, faults_of, workload_of
from loadtests.studies.machine.systems import ROOT
from loadtests.watch.gateway_page import Page
from policies.contracts import Need
from routing.request.effects import Outcome
from tests.engines.emulated_engines import ensure_tokenizer
from tests.loadtests.studies.test_slow_engine import engine, is_stopped, replica
from tests.loadtests.watch.test_gateway_page import BEFORE, pages, process, url
from tests.waiting import wait_until

__all__ = ["engine", "pages", "process", "replica", "url"]

HEALTHY = ClientHealth(
    sent=3, send_lag_p99_s=0.001, cpu_fraction=0.1, achieved_fraction=1.0, wrong_lengths=0, cached_tokens=0, errors={}
)
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


def a_cell(policy: str, slowest_s: float = 0.3, **changes: Any) -> Cell:
    found = Cell(
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


def a_run(*outcomes: Outcome, wrong_lengths: int = 0) -> HttpRun:
    """Requests of 100 tokens that come ten seconds apart; first tokens take half a second."""
    recorder = RunRecorder(("users",))
    for number, outcome in enumerate(outcomes):
        at_s = 10.0 * number
        request = PlannedRequest(
            request_id=f"q{number}",
            intent=number,
            scheduled_s=at_s,
            prompt_tokens=100,
            output_tokens=8,
            max_output_tokens=8,
            timeout_s=60.0,
        )
        recorder.add(
            request,
            sent_s=at_s,
            first_token_s=at_s + 0.5,
            end_s=at_s + 1.0,
            output_tokens=8,
            outcome=outcome,
            num_attempts=1,
            is_last=True,
        )
    return HttpRun(table=recorder.table(()), health=replace(HEALTHY, wrong_lengths=wrong_lengths))


def cell_from(run: HttpRun, text: str = COUNTED) -> Cell:
    others = {"left_open": 0, "kv_left": 0.0, "episodes": 2, "foreign_fraction": 0.0}
    return cell_of(WITH, 1, run, Page.parse(text), slow_id="a", from_s=10.0, **others)


GOOD = [a_cell(WITHOUT, 1.5), a_cell(WITH)]


@pytest.mark.parametrize(
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
def test_every_mark_can_be_missed(found: list[Cell], missed: list[str]) -> None:
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


def test_where_nothing_was_stopped_nothing_took_its_time() -> None:
    quiet = COUNTED.replace('le="0.01"} 1.0', 'le="0.01"} 0.0').replace('+Inf"} 1.0', '+Inf"} 0.0')
    cell = cell_from(a_run(COMPLETED, COMPLETED, COMPLETED), quiet.replace("seconds_count 1.0", "seconds_count 0.0"))

    assert cell.cancels == 0
    assert math.isnan(cell.cancel_mean_s)
    assert math.isnan(cell.cancel_most_s)


def test_what_is_measured_comes_after_the_policy_has_learned() -> None:
    cell = cell_from(a_run(COMPLETED, COMPLETED, COMPLETED))

    assert (cell.ttft_s, cell.requests, cell.unanswered) == ([0.5, 0.5], 3, 0)
    assert (cell.hedges, cell.hedges_to_slow, cell.hedges_won, cell.firsts_won) == (1, 0, 1, 0)
    assert (cell.duplicated, cell.cancels, cell.cancel_mean_s, cell.cancel_most_s) == (0.1, 1, 0.008, 0.01)
    assert cell.finished_twice == pytest.approx(0.05)
    assert (cell.astray, cell.untaken) == (0, 0)


@pytest.mark.parametrize(
    ("run", "counted"),
    [
        (a_run(COMPLETED, COMPLETED, GAVE_UP), COUNTED.replace('reason=""} 3.0', 'reason=""} 2.0')),
        (a_run(COMPLETED, COMPLETED, COMPLETED, wrong_lengths=1), COUNTED),
        (a_run(COMPLETED, COMPLETED, COMPLETED), COUNTED.replace('reason=""} 3.0', 'reason=""} 4.0')),
    ],
    ids=["given up", "too long", "answered twice"],
)
def test_a_request_is_answered_once_and_with_all_its_tokens_or_counts_as_unanswered(run: HttpRun, counted: str) -> None:
    assert cell_from(run, counted).unanswered == 1


def test_an_attempt_that_runs_elsewhere_than_it_was_sent_is_astray_twice() -> None:
    """One replica has one too few, another one too many."""
    assert num_astray(Page.parse(COUNTED)) == 0

    nobody_stopped = COUNTED.replace("seconds_count 1.0", "seconds_count 0.0")
    moved = nobody_stopped.replace(
        'attempts_total{pool="unified",replica="a"} 2.0', 'attempts_total{pool="unified",replica="a"} 3.0'
    )
    moved = moved.replace(
        'attempts_total{pool="unified",replica="b"} 2.0', 'attempts_total{pool="unified",replica="b"} 1.0'
    )
    assert num_astray(Page.parse(moved)) == 2


def test_an_attempt_that_is_stopped_at_once_may_never_get_to_its_replica() -> None:
    fewer = COUNTED.replace(
        'attempts_total{pool="unified",replica="b"} 2.0', 'attempts_total{pool="unified",replica="b"} 1.0'
    )
    cell = cell_from(a_run(COMPLETED, COMPLETED, COMPLETED), fewer)

    assert (cell.astray, cell.untaken) == (0, 1)
    assert num_astray(Page.parse(fewer.replace("seconds_count 1.0", "seconds_count 0.0"))) == 1


@pytest.mark.parametrize(("is_open", "usage", "rests"), [(0, 0.0, True), (1, 0.0, False), (0, 0.01, False)])
def test_a_deployment_is_at_rest_when_nobody_waits_and_no_kv_is_held(is_open: int, usage: float, rests: bool) -> None:
    held = f'spillway_replica_kv_cache_usage{{pool="unified",replica="a"}} {usage}'

    assert is_at_rest(Page.parse(f"spillway_requests_open {is_open}\n{held}\n")) is rests


def test_a_deployment_is_calm_when_nothing_has_changed_for_so_long_that_every_report_is_in() -> None:
    """Between two requests a replica's last report may be one of an idle replica."""
    looks = [f"spillway_requests_open 0\nspillway_replica_attempts_total {number}\n" for number in (5.0, 6.0)]
    before, after = map(Page.parse, looks)
    calm = Calm()

    assert [calm(before) for _ in range(CALM_LOOKS)] == [False] * CALM_LOOKS
    assert [calm(after) for _ in range(CALM_LOOKS + 1)] == [False] * CALM_LOOKS + [True]
    assert not calm(Page.parse(looks[1].replace("open 0", "open 1")))


def test_what_is_deployed_can_be_and_the_policy_is_all_that_changes_while_it_runs() -> None:
    ensure_tokenizer()
    applications = {policy: document_of(policy)["applications"][0] for policy in (WITHOUT, WITH)}

    for policy, application in applications.items():
        config = laid_over(read_config(application["args"]), user_config_in(application))
        check_policies(config)
        assert config.policies.hedging.name == policy
        assert Need.SERVICE_RATES in config.provided
        assert [pool.replicas for pool in config.pools] == [2]
    assert applications[WITHOUT]["args"] == applications[WITH]["args"]


def test_the_replica_is_slow_at_the_same_times_for_both_policies_and_only_when_one_has_learned() -> None:
    faults = faults_of(1, 45.0)

    assert faults == faults_of(1, 45.0) != faults_of(2, 45.0)
    assert all(LEARNS_S <= each.at_s < LEARNS_S + 45.0 and each.factor == SLOW.factor for each in faults)
    assert all(faults_of(seed, 45.0) for seed in (1, 2, 3)), "each of the plans has some"


def test_both_policies_get_the_same_plan() -> None:
    plans = [list(workload_of(20.0).plan(Seeds(1))) for _ in range(2)]

    assert plans[0] == plans[1]


def test_the_table_says_nothing_of_what_did_not_happen() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(
        table_of([a_cell(WITHOUT, cancels=0, cancel_mean_s=math.nan, cancel_most_s=math.nan), a_cell(WITH)], "t")
    )

    assert isinstance(console.file, io.StringIO)
    (line,) = [each for each in console.file.getvalue().splitlines() if "until they ended" in each]
    assert [each.strip() for each in line.split("│")[2:4]] == ["-", "2 ms"]


def test_odd_arguments_are_refused_with_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hedging_vllm.main(["--seconds", "5"])

    assert "allowed" in capsys.readouterr().err


@pytest.fixture
def _sigterm_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm_as_before")
@pytest.mark.parametrize("pages", [[BEFORE]])
def test_a_gateway_that_shows_no_replicas_is_named_and_the_status_is_2(
    url: str,
    process: "subprocess.Popen[bytes]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hedging_vllm, "URL", url)
    monkeypatch.setattr(hedging_vllm, "SETTLE_PATIENCE_S", 0.0)
    monkeypatch.setattr(hedging_vllm, "up", lambda *_: nullcontext(process))

    assert hedging_vllm.main(["--json", str(tmp_path / "figures.json")]) == 2

    assert "do not show 2 replicas" in capsys.readouterr().out


ONE_THAT_IS_SLOW = """
import signal, sys
from loadtests.studies import hedging_vllm
from loadtests.studies.slow_engine import slowed
from tests.loadtests.studies.test_slow_engine import slow

def measure(_):
    with slowed(int(sys.argv[1]), [slow(0.0, 600.0)]):
        signal.pause()

hedging_vllm.Bench.measure = measure
sys.exit(hedging_vllm.main(["--json", sys.argv[2]]))
"""


def test_no_engine_stays_stopped_when_the_command_is_told_to_end(
    replica: psutil.Process, engine: psutil.Process, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ONE_THAT_IS_SLOW, str(replica.pid), str(tmp_path / "figures.json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as running:
        wait_until(lambda: is_stopped(engine), "the engine is stopped")
        running.terminate()
        said, _ = running.communicate(timeout=30)

    assert (running.returncode, b"interrupted" in said) == (130, True)
    assert not is_stopped(engine)

import math

import numpy as np
import pytest

from cluster.sim.run_table import RunTable
from deployments.app import check_policies, read_config
from loadtests.drivers.http_driver import HttpRun
from loadtests.results.client_health import ClientHealth
from loadtests.results.metrics import Slo
from loadtests.studies import overload
from loadtests.studies.overload_cases import CASES, POLICIES, document_of, workload_of

HEALTHY = ClientHealth(
    sent=4, send_lag_p99_s=0.001, cpu_fraction=0.1, achieved_fraction=1.0, wrong_lengths=0, cached_tokens=0, errors={}
)


def run_of(*rows: tuple[str, float, float], errors: dict[str, int] | None = None) -> HttpRun:
    """Requests of 11 tokens: how each ended, when its first token came, and when it was over."""
    outcomes = {"completed": 0, "refused": 1, "failed": 2, "cancelled": 3}
    count = len(rows)
    table = RunTable(
        traffic_classes=("chat",),
        intent=np.arange(count),
        session=np.full(count, -1),
        is_last=np.ones(count, dtype=np.bool_),
        try_index=np.zeros(count, dtype=np.int16),
        traffic_class=np.zeros(count, dtype=np.int16),
        scheduled_s=np.zeros(count),
        sent_s=np.zeros(count),
        first_token_s=np.array([row[1] for row in rows]),
        end_s=np.array([row[2] for row in rows]),
        prompt_tokens=np.full(count, 20, dtype=np.int32),
        output_tokens=np.full(count, 11, dtype=np.int32),
        cached_tokens=np.zeros(count, dtype=np.int32),
        full_output_tokens=np.full(count, 11, dtype=np.int32),
        outcome=np.array([outcomes[row[0]] for row in rows], dtype=np.int8),
        reason=np.zeros(count, dtype=np.int8),
        attempts=np.ones(count, dtype=np.int16),
        hedges=np.zeros(count, dtype=np.int16),
        computed_prompt_tokens=np.zeros(count, dtype=np.int32),
        gateway=np.full(count, -1, dtype=np.int16),
    )
    health = ClientHealth(**{**{name: getattr(HEALTHY, name) for name in HEALTHY.__slots__}, "errors": errors or {}})
    return HttpRun(table=table, health=health)


def cell_of(run: HttpRun, load: float = 3.0, left_open: int = 0) -> overload.Cell:
    return overload._cell("deadline", load, Slo(ttft_s=1.0, tpot_s=0.2), run, left_open)


@pytest.mark.parametrize("engine", sorted(CASES))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_deployment_of_the_comparison_starts_with_every_policy(engine: str, policy: str) -> None:
    document = document_of(CASES[engine], policy)

    check_policies(read_config(document["applications"][0]["args"]))


def test_all_policies_get_the_same_plan() -> None:
    case = CASES["vllm"]

    rates = {each.name: each.arrivals.rate_per_s for each in workload_of(case, 10.0, 60.0).classes}  # type: ignore[attr-defined]

    assert rates == {"short": 9.0, "long": 1.0}


def test_what_is_good_is_counted_over_everything_that_was_offered() -> None:
    cell = cell_of(
        run_of(
            ("completed", 0.5, 1.5),
            ("completed", 1.5, 2.0),  # late
            ("completed", 0.5, 9.0),  # slow
            ("refused", math.nan, 0.02),
        )
    )

    assert (cell.offered, cell.good, cell.admitted, cell.refusals) == (4, 0.25, 0.75, 1)
    assert cell.kept == pytest.approx(1 / 3)
    assert cell.refusal_p99_s == pytest.approx(0.02)


def test_errors_that_overload_explains_are_not_held_against_anybody() -> None:
    stated = {"HTTP 429 deadline_unreachable": 5, "HTTP 503 no_replica_available": 1, "HTTP 504 deadline_exceeded": 1}

    assert cell_of(run_of(("completed", 0.5, 1.0), errors=stated)).unstated == {}
    assert cell_of(run_of(("completed", 0.5, 1.0), errors={"HTTP 500": 2})).unstated == {"HTTP 500": 2}


@pytest.mark.parametrize(
    ("run", "left_open", "missed"),
    [
        (run_of(("completed", 0.5, 1.0), ("refused", math.nan, 0.01)), 0, []),
        (run_of(("completed", 0.5, 1.0), ("refused", math.nan, 0.2)), 0, ["refusal p99"]),
        (run_of(("completed", 0.5, 1.0)), 3, ["left open"]),
        (run_of(("completed", 0.5, 1.0), errors={"HTTP 500": 1}), 0, ["unstated"]),
        (run_of(("completed", 2.5, 3.0)), 0, ["admitted within"]),
    ],
    ids=["all well", "slow refusals", "a leak", "an error of ours", "late answers"],
)
def test_every_mark_can_be_missed(run: HttpRun, left_open: int, missed: list[str]) -> None:
    lines, are_met = overload.verdicts(CASES["emulated"], [cell_of(run, left_open=left_open)])

    assert are_met is (not missed)
    assert all(any(word in line for line in lines if line.endswith("MISSED")) for word in missed)


def test_nobody_but_the_policy_under_test_is_held_against_the_marks() -> None:
    cell = cell_of(run_of(("completed", 2.5, 3.0)))
    other = overload.Cell(**{name: getattr(cell, name) for name in cell.__slots__} | {"policy": "none"})

    assert overload.verdicts(CASES["emulated"], [other]) == ([], True)


@pytest.mark.parametrize(
    "arguments", [["--loads", "x"], ["--loads", "0"], ["--policies", "hope"], ["--seconds", "0"], ["--engine", "steam"]]
)
def test_odd_arguments_are_refused_with_what_is_allowed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        overload.main(arguments)

    assert "allowed" in capsys.readouterr().err or arguments[0] == "--engine"

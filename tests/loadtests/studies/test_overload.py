import math

import pytest

from loadtests.drivers.http_driver import HttpRun
from loadtests.results.slo import ClassSlo
from loadtests.studies import overload
from loadtests.studies.overload_cases import CASES
from tests.loadtests.live_scenarios import health
from tests.loadtests.run_tables import RequestRow, run_table
from tests.tables import for_each


def run_of(*rows: tuple[str, float, float], errors: dict[str, int] | None = None) -> HttpRun:
    """Requests of 11 tokens: how each ended, when its first token came, and when it was over."""
    requests = [
        RequestRow(logical_request=number, outcome=outcome, ttft_s=ttft_s, e2e_s=e2e_s, output_tokens=11)
        for number, (outcome, ttft_s, e2e_s) in enumerate(rows)
    ]
    return HttpRun(table=run_table(*requests), health=health(errors=errors or {}))


def cell_of(run: HttpRun, load: float = 3.0, left_open: int = 0) -> overload.OverloadCell:
    return overload._cell("deadline", load, ClassSlo(ttft_s=1.0, tpot_s=0.2), run, left_open)


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


@for_each(
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
def test_every_check_can_be_missed(run: HttpRun, left_open: int, missed: list[str]) -> None:
    lines, are_met = overload.verdicts(CASES["emulated"], [cell_of(run, left_open=left_open)])

    assert are_met is (not missed)
    assert all(any(word in line for line in lines if line.endswith("MISSED")) for word in missed)

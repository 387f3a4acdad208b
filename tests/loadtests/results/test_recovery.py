"""From when on is it as good as before? What is late once does not count, what stays late does."""

import math

import pytest

from cluster.sim.run_table import RunTable
from loadtests.results.recovery import MIN_REQUESTS, recovered_after
from tests.loadtests.run_tables import run_table, served

RATE = 10
FAULT_S = 20.0


def table(late: tuple[float, float], ttft_s: float = 1.0, duration_s: float = 80.0) -> RunTable:
    """Ten requests a second, each with a first token after 0.1 s, but for those that come in some time."""
    rows = []
    for number in range(int(duration_s * RATE)):
        at_s = number / RATE
        rows.append(served(number, at_s, ttft_s if late[0] <= at_s < late[1] else 0.1, 2.0, 10))
    return run_table(*rows)


def test_without_a_late_one_it_is_as_good_at_once() -> None:
    assert recovered_after(table((0.0, 0.0)), 5.0, FAULT_S).value == 0.0


def test_a_few_late_ones_of_hundreds_are_not_seen_by_a_99th_percentile() -> None:
    assert recovered_after(table((25.0, 25.4)), 5.0, FAULT_S).value == 0.0


def test_it_is_recovered_when_the_last_late_ones_are_a_hundredth_of_what_follows() -> None:
    found = recovered_after(table((22.0, 30.0)), 5.0, FAULT_S)
    assert found.value == pytest.approx(10.0, abs=0.7)
    assert found.samples == 600


@pytest.mark.parametrize("ttft_s", [1.0, math.nan], ids=["late", "never"])
def test_what_stays_late_or_unanswered_never_recovers(ttft_s: float) -> None:
    assert recovered_after(table((20.0, 80.0), ttft_s), 5.0, FAULT_S).value == pytest.approx(59.9)


def test_too_few_requests_say_nothing() -> None:
    short = table((0.0, 0.0), duration_s=FAULT_S + (MIN_REQUESTS - 1) / RATE)
    assert math.isnan(recovered_after(short, 5.0, FAULT_S).value)
    assert math.isnan(recovered_after(table((0.0, 0.0)), 15.0, FAULT_S).value)

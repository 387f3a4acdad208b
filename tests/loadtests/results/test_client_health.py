"""The gate: an unhealthy client makes a run invalid, with a sentence that says what to do."""

import math
from typing import Any

import pytest

from loadtests.results.client_health import health_problems
from tests.loadtests.live_scenarios import health
from tests.tables import for_each


@for_each("median_ttft_s", [0.2, math.nan])
def test_a_healthy_client_has_no_problem(median_ttft_s: float) -> None:
    assert list(health_problems(health(), median_ttft_s)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"send_lag_p99_s": 0.011}, "sent 11.0 ms late", id="late"),
        pytest.param({"cpu_fraction": 0.8}, "used 80% of a core", id="busy"),
        pytest.param({"achieved_fraction": 0.98}, "at 98.0% of the planned rate", id="slow"),
        pytest.param({"client_dropped": 3}, "3 requests were not sent", id="dropped"),
    ],
)
@pytest.mark.parametrize("median_ttft_s", [0.2, math.nan])
def test_each_limit_has_its_sentence(changes: dict[str, Any], says: str, median_ttft_s: float) -> None:
    (problem,) = health_problems(health(**changes), median_ttft_s)

    assert says in problem
    assert "fraction" in problem, "and says what to do"


def test_a_lag_that_is_small_beside_the_latencies_is_none() -> None:
    """20 ms beside a median TTFT of 3 s."""
    assert list(health_problems(health(send_lag_p99_s=0.02), 3.0)) == []

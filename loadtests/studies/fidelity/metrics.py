"""The arithmetic of comparing a simulated run with a measured one: metrics, signed errors, rankings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cluster.sim.run_table import OUTCOMES, RunTable
from loadtests.results.client_health import ClientHealth
from routing.request.effects import OutcomeKind

GOALS: Mapping[str, float | None] = {
    "TTFT p50": 0.15,
    "TTFT p99": 0.25,
    "TPOT p50": 0.05,
    "E2E p50": 0.10,
    "E2E p99": 0.10,
    "throughput": None,
}
"""Metric, and the largest error that is good enough; ``None``: shown, without a goal."""
UNITS: Mapping[str, tuple[float, str]] = dict.fromkeys(GOALS, (1000.0, "ms")) | {"throughput": (1.0, "tokens/s")}
TAU_GOAL = 0.8
MAX_SEND_LAG_S = 0.010
MAX_SEND_LAG_OF_TTFT = 0.01
MAX_CPU_FRACTION = 0.8
MIN_ACHIEVED_FRACTION = 0.99
MAX_FOREIGN_FRACTION = 0.05
"""Beyond these a run says something about its client or its neighbours, and not about the service."""
FidelityMetrics = Mapping[str, float]
"""A value for each of ``GOALS``, in seconds, and tokens per second."""


def metrics_of(table: RunTable) -> FidelityMetrics:
    """The metrics of one run; NaN where nothing was measured. Percentiles are over completed requests.

    TTFT is the first content and E2E the last token, both minus when the user wanted the answer. TPOT is (last token -
    first) / (output tokens - 1), over answers of two tokens and more. Throughput is output tokens of completed requests
    until the last of them ended.
    """
    completed = table.outcome == OUTCOMES.index(OutcomeKind.COMPLETED.value)
    scheduled_s, first_s, end_s = (
        column[completed] for column in (table.scheduled_s, table.first_token_s, table.end_s)
    )
    tokens = table.output_tokens[completed]
    several = tokens > 1
    tpot_s = (end_s - first_s)[several] / (tokens[several] - 1)
    ttft_s, e2e_s = first_s - scheduled_s, end_s - scheduled_s
    return {
        "TTFT p50": _quantile(ttft_s, 0.5),
        "TTFT p99": _quantile(ttft_s, 0.99),
        "TPOT p50": _quantile(tpot_s, 0.5),
        "E2E p50": _quantile(e2e_s, 0.5),
        "E2E p99": _quantile(e2e_s, 0.99),
        "throughput": float(tokens.sum() / end_s.max()) if len(end_s) else math.nan,
    }


def completed_fraction(table: RunTable) -> float:
    """Share of requests that completed; NaN without any."""
    return float((table.outcome == OUTCOMES.index(OutcomeKind.COMPLETED.value)).mean()) if len(table) else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One plan, run for real and in the simulator.

    Args:
        part: What was deployed.
        workload: Which users.
        load: Share of the capacity.
        variant: What is compared with its like, such as a balancer's name; empty where nothing is.
        seed: Of the plan.
        requests: Requests that were sent.
        measured: Metrics of the real run.
        simulated: Metrics of the simulated one.
        completed: Share of the real requests that completed.
        cached_fraction: Prompt tokens found in a prefix cache, measured and simulated.
        foreign_fraction: Share of all cores' time that other work took meanwhile.
        health: How the client fared.
    """

    part: str
    workload: str
    load: float
    variant: str = ""
    seed: int
    requests: int
    measured: FidelityMetrics
    simulated: FidelityMetrics
    completed: float
    cached_fraction: tuple[float, float]
    foreign_fraction: float
    health: ClientHealth

    @property
    def invalid_because(self) -> tuple[str, ...]:
        """What speaks against the measurement; nothing, if it is valid."""
        health = self.health
        lag_limit_s = max(MAX_SEND_LAG_S, MAX_SEND_LAG_OF_TTFT * self.measured["TTFT p50"])
        checks = {
            f"send lag p99 {1e3 * health.send_lag_p99_s:.0f} ms": health.send_lag_p99_s <= lag_limit_s,
            f"client CPU {health.cpu_fraction:.0%}": health.cpu_fraction < MAX_CPU_FRACTION,
            f"sent {health.achieved_fraction:.1%} of the rate": health.achieved_fraction >= MIN_ACHIEVED_FRACTION,
            f"{self.completed:.1%} completed": self.completed == 1.0,
            f"{health.wrong_lengths} answers of a wrong length": health.wrong_lengths == 0,
            f"other work on {self.foreign_fraction:.0%} of the cores": self.foreign_fraction <= MAX_FOREIGN_FRACTION,
        }
        return tuple(what for what, is_good in checks.items() if not is_good)


def signed_error(simulated: float, measured: float) -> float:
    """(simulated - measured) / measured: above 0, the simulator is too slow. NaN when nothing was measured."""
    return (simulated - measured) / measured if measured > 0 else math.nan


def _quantile(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else math.nan

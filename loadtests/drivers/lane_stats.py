"""How each lane and traffic class fares, in a line each: what a web page or a terminal shows while a run goes on.

Percentiles are over all that has ended so far, and quoted however few that is; the run's metrics, over the measured
time alone, come at its end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.sim.run_table import OUTCOMES, RunTable
from loadtests.results.run_record import RequestDetails

COMPLETED = OUTCOMES.index("completed")


class LaneStats(NamedTuple):
    """One line; times are milliseconds, ``nan`` where there is nothing to take them over."""

    lane: str
    traffic_class: str
    requests: int
    completed: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    longest_gap_p99_ms: float
    e2e_p50_ms: float
    output_tokens: int


TITLES = {
    "lane": "Lane",
    "traffic_class": "Class",
    "requests": "# Requests",
    "completed": "# Completed",
    "ttft_p50_ms": "TTFT p50 (ms)",
    "ttft_p99_ms": "TTFT p99 (ms)",
    "tpot_p50_ms": "TPOT p50 (ms)",
    "longest_gap_p99_ms": "Longest gap p99 (ms)",
    "e2e_p50_ms": "E2E p50 (ms)",
    "output_tokens": "Output tokens",
}
"""Headings, by the fields' names."""
QUANTILES = {
    "ttft_p50_ms": 0.5,
    "ttft_p99_ms": 0.99,
    "tpot_p50_ms": 0.5,
    "longest_gap_p99_ms": 0.99,
    "e2e_p50_ms": 0.5,
}
"""Which fields are quantiles, and of what fraction."""


def lane_stats(table: RunTable, details: Sequence[RequestDetails]) -> list[LaneStats]:
    """A line for each lane and class that has any request, by name.

    Args:
        table: Every request so far.
        details: What else is known of each, in the same order.
    """
    lanes = np.array([each.lane for each in details], dtype=object)
    gaps_s = np.array([each.longest_gap_s for each in details], dtype=np.float64)
    found = sorted({(lane, int(number)) for lane, number in zip(lanes, table.traffic_class, strict=True)})
    return [
        _line(table, gaps_s, lane, number, (lanes == lane) & (table.traffic_class == number)) for lane, number in found
    ]


def _line(table: RunTable, gaps_s: NDArray[np.float64], lane: str, number: int, mask: NDArray[np.bool_]) -> LaneStats:
    has_completed = mask & (table.outcome == COMPLETED)
    has_tpot = has_completed & (table.output_tokens > 1)
    tpot_s = (table.end_s - table.first_token_s)[has_tpot] / (table.output_tokens[has_tpot] - 1)
    ttft_s = (table.first_token_s - table.scheduled_s)[mask]
    return LaneStats(
        lane=lane,
        traffic_class=table.traffic_classes[number],
        requests=int(mask.sum()),
        completed=int(has_completed.sum()),
        ttft_p50_ms=_quantile_ms(ttft_s, 0.5),
        ttft_p99_ms=_quantile_ms(ttft_s, 0.99),
        tpot_p50_ms=_quantile_ms(tpot_s, 0.5),
        longest_gap_p99_ms=_quantile_ms(gaps_s[mask], 0.99),
        e2e_p50_ms=_quantile_ms((table.end_s - table.scheduled_s)[has_completed], 0.5),
        output_tokens=int(table.output_tokens[mask].sum()),
    )


def _quantile_ms(times_s: NDArray[np.float64], quantile: float) -> float:
    known_s = times_s[np.isfinite(times_s)]
    return float(np.quantile(known_s, quantile)) * 1e3 if len(known_s) else float("nan")

"""How long after a fault are requests served as they were before it?"""

import math

import numpy as np
from numpy.typing import NDArray

from cluster.sim.run_table import RunTable
from loadtests.results.metrics import MetricValue

SLOWER = 1.5
"""Times the 99th percentile of before the fault that is as good as ever."""
MIN_REQUESTS = 100
"""Fewer say nothing of a 99th percentile."""


def recovered_after(table: RunTable, since_s: float, fault_at_s: float) -> MetricValue:
    """From when on the 99th percentile of times to first token, of all requests that come later, is at most 1.5 times
    what it was before the fault, in seconds after it; all the time that there is where that never comes to be.

    What got no first token took for ever.

    Args:
        table: A row for each request.
        since_s: From when on it was as usual, on the run's clock.
        fault_at_s: When it happened.
    """
    order = np.argsort(table.scheduled_s, kind="stable")
    at_s = table.scheduled_s[order]
    ttft_s = np.nan_to_num((table.first_token_s - table.scheduled_s)[order], nan=np.inf)
    before = ttft_s[(at_s >= since_s) & (at_s < fault_at_s)]
    first, last = int(np.searchsorted(at_s, fault_at_s)), len(at_s) - MIN_REQUESTS
    if len(before) < MIN_REQUESTS or last < first:
        return MetricValue(value=math.nan, samples=len(before))
    usual_s = _p99(before)
    for start in range(first, last + 1):
        if _p99(ttft_s[start:]) <= SLOWER * usual_s:
            after_s = float(at_s[start] - fault_at_s) if start > first else 0.0
            return MetricValue(value=after_s, samples=len(at_s) - first)
    return MetricValue(value=float(at_s[-1] - fault_at_s), samples=len(at_s) - first)


def _p99(values: NDArray[np.float64]) -> float:
    """A value that was measured: between one that came and one that did not there is none."""
    return float(np.quantile(values, 0.99, method="lower"))

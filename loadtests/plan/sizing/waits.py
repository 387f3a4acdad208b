"""Waits of one sample path: those of a demand's own arrivals, bursts and all."""

import heapq

import numpy as np

from loadtests.plan.sizing.demand import Floats


def waits_at_servers(arrivals_s: Floats, service_s: Floats, servers: int) -> Floats:
    """Waits in one queue before servers that are alike, in order of arrival.

    Each job goes to the server that is free first; O(n log c). Source: J. Kiefer and J. Wolfowitz, "On the Theory of
    Queues with Many Servers" (1955).

    Args:
        arrivals_s: When jobs come, in order.
        service_s: How long each takes.
        servers: How many, 1 or more.
    """
    free_s = [0.0] * servers
    waits_s = []
    for at_s, its_s in zip(arrivals_s.tolist(), service_s.tolist(), strict=True):
        begins_s = max(at_s, free_s[0])
        heapq.heapreplace(free_s, begins_s + its_s)
        waits_s.append(begins_s - at_s)
    return np.array(waits_s)

"""How much one queue can be given, and how many servers it takes."""

import math
from bisect import bisect_left
from dataclasses import replace

from policies.capacity.bisection import least
from policies.capacity.stationary_queue import StationaryQueue

MOST_SERVERS = 200_000


def highest_rate_per_s(queue: StationaryQueue, limit_s: float, quantile: float) -> float:
    """The highest rate at which so large a part of all jobs is answered within a limit; 0: at none.

    Args:
        queue: Its servers and its variation; its rate does not count.
        limit_s: Of wait and service.
        quantile: Of the jobs, above 0 and below 1.
    """
    capacity_per_s = queue.servers / queue.service_s

    def is_late(rate_per_s: float) -> bool:
        return replace(queue, rate_per_s=rate_per_s).response_quantile_s(quantile) > limit_s

    return 0.0 if is_late(0.0) else least(is_late, capacity_per_s)


def fewest_servers(queue: StationaryQueue, limit_s: float, quantile: float) -> int:
    """How many servers it takes until so large a part of all jobs is answered within a limit.

    Args:
        queue: Its rate, its service and its variation; its servers do not count.
        limit_s: Of wait and service.
        quantile: Of the jobs, above 0 and below 1.

    Raises:
        ValueError: No number of them is enough, since the service alone takes longer, or there is too much work.
    """
    if replace(queue, rate_per_s=0.0).response_quantile_s(quantile) > limit_s:
        raise ValueError(
            f"no number of servers answers {quantile:.0%} of jobs of {queue.service_s:g} s in {limit_s:g} s"
        )
    if queue.load > MOST_SERVERS / 2:
        raise ValueError(f"{queue.load:.3g} servers are busy; no more than {MOST_SERVERS / 2:g} are looked for")
    sizes = range(max(1, math.ceil(queue.load)), MOST_SERVERS)
    return sizes[bisect_left(sizes, True, key=lambda servers: _keeps(queue, servers, limit_s, quantile))]


def _keeps(queue: StationaryQueue, servers: int, limit_s: float, quantile: float) -> bool:
    return replace(queue, servers=servers).response_quantile_s(quantile) <= limit_s

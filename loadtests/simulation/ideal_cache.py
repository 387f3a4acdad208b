"""How much of its prompts a fleet could have found in its prefix caches, had they been one."""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable

from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival
from policies.views import Role


def prompt_cache_tokens(fleet: FleetSpec) -> int:
    """Size of the KV caches in which prompts are looked for, of all replicas together."""
    pools = [pool for pool in fleet.pools if pool.role is not Role.DECODE]
    return sum(pool.replicas * (pool.kv_capacity_tokens or pool.profile.kv.capacity_tokens) for pool in pools)


def ideal_hit_fraction(arrivals: Iterable[Arrival], capacity_tokens: int) -> float:
    """Prompt tokens found / all, in one least-recently-used cache that meets the arrivals in order of time.

    Each prompt is looked up and entered at once, together with its answer, as if it took no time to compute, and
    nothing but shared text takes room: no replica, and no router in front of several, finds more. Of a prompt that is
    there as a whole the last unit is computed all the same, because a model has to see at least one token.

    Args:
        arrivals: All requests that were sent, in any order.
        capacity_tokens: Size of the cache.
    """
    cache: OrderedDict[int, int] = OrderedDict()
    num_cached = num_found = num_all = 0
    for _, request in sorted(arrivals, key=lambda arrival: arrival.at_s):
        num_all += request.prompt_tokens
        unit_tokens = request.content_unit_tokens
        if not request.content:
            continue
        content = request.content
        num_known = bisect_left(content, True, key=lambda unit: unit not in cache)
        num_found += min(num_known, (request.prompt_tokens - 1) // unit_tokens) * unit_tokens
        for unit in content[num_known:]:
            cache[unit] = unit_tokens
        for unit in reversed(content):  # the end of a text goes before its beginning
            cache.move_to_end(unit)
        num_cached += (len(content) - num_known) * unit_tokens
        while num_cached > capacity_tokens:
            num_cached -= cache.popitem(last=False)[1]
    return num_found / num_all if num_all else math.nan

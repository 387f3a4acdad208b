"""As many replicas as are paid for, each where it does most."""

from collections.abc import Mapping

from policies.pool_views import ScalingView


def dollars_per_h(replicas: Mapping[str, int], view: ScalingView) -> float:
    """What so many replicas of each pool cost."""
    return sum(number * view.pools[name].dollars_per_h for name, number in replicas.items())


def shared_out(view: ScalingView, exact: Mapping[str, float], most_dollars_per_h: float) -> dict[str, int]:
    """All that is paid for, replica by replica, each to the pool where most requests for its price would be late.

    Args:
        view: The pools; each has its fewest in any case.
        exact: What each of them needs.
        most_dollars_per_h: What all replicas may cost together.
    """
    given = {name: pool.min_replicas for name, pool in view.pools.items()}

    def late_without(name: str) -> float:
        pool, missing = view.pools[name], exact[name] - given[name]
        return pool.demand.num_requests * min(1.0, missing) / exact[name] / pool.dollars_per_h if missing > 0.0 else 0.0

    def may_have_more(name: str) -> bool:
        pool = view.pools[name]
        costs = dollars_per_h(given, view) + pool.dollars_per_h
        return given[name] < pool.max_replicas and costs <= most_dollars_per_h

    while short := [name for name in given if late_without(name) > 0.0 and may_have_more(name)]:
        given[max(short, key=late_without)] += 1
    return given

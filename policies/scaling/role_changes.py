"""Replicas that one side of the handoff has to spare, for the other side when it is short of some."""

from collections.abc import Mapping

from policies.pool_views import PoolView


def with_role_changes(
    targets: Mapping[str, int], wanted: Mapping[str, int], pools: Mapping[str, PoolView]
) -> dict[str, int]:
    """Targets in which a pool that is short, or waits for starts, gets at once what the other one does not want.

    A pool gives what it has above ``wanted``, however long it has not wanted it: it can have it back without a start.
    Pools that don't change roles keep their targets.

    Source: the instance flip of TetriInfer (2024), which asks for no spare.

    Args:
        targets: What each pool is to have, by name.
        wanted: What each of them takes now, with something to spare where that is fewer than it has.
        pools: What they have.
    """
    changed, changing = dict(targets), [name for name, pool in pools.items() if pool.changes_roles]
    for name in changing:
        for other in changing:
            short = changed[name] - pools[name].num_ready - pools[name].num_changing
            to_spare = pools[other].num_ready - max(wanted[other], pools[other].min_replicas)
            if other != name and short > 0 and to_spare > 0:
                changed[other] = min(changed[other], pools[other].num_replicas - min(short, to_spare))
    return changed

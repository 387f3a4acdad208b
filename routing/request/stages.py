"""Plans, the stages they are made of, and which pools serve them.

A plan is a tuple of stages: ``(UNIFIED,)``, or ``(PREFILL, DECODE)`` with a KV handoff between the two. A stage goes by
the name of the role that replicas have who do nothing else.
"""

from collections.abc import Mapping

from policies.views import Role

Plan = tuple[Role, ...]

UNIFIED: Plan = (Role.UNIFIED,)
DISAGGREGATED: Plan = (Role.PREFILL, Role.DECODE)

PoolNames = tuple[str, ...]

NO_POOLS: PoolNames = ()


def pools_serving(stage: Role, pools: Mapping[str, Role], whole_request_pools: PoolNames = NO_POOLS) -> tuple[str, ...]:
    """Names of the pools that serve a stage, in the order of ``pools``.

    Args:
        stage: A whole request, its prefill, or its decode.
        pools: Role of every pool, by name.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
    """
    takes_whole = whole_request_pools if stage is Role.UNIFIED else NO_POOLS
    return tuple(name for name, role in pools.items() if role is stage or name in takes_whole)


def stages_served(pools: Mapping[str, Role], whole_request_pools: PoolNames = NO_POOLS) -> frozenset[Role]:
    """Stages that have a pool."""
    return frozenset(stage for stage in Role if pools_serving(stage, pools, whole_request_pools))

"""What the simulator makes of a deployment's configuration: its fleet and its dispatcher."""

from typing import Any

from cluster.config.policies import PoliciesConfig
from cluster.sim.topology import FleetSpec, PoolSpec
from engines.model.profile import EngineProfile
from loadtests.machine.gateway_overhead import NO_COST, GatewayOverhead
from policies.views import Role
from routing.config.spec import DispatcherParams, DispatcherSpec

DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_FLUSH_INTERVAL_S = 0.05
"""Both as in the deployments' configuration; a configuration file may say otherwise."""
INGRESS_SHARE = 2
"""A request's way through HTTP, parsing and tokenizing counts as so many messages between gateway and replica."""


def fleet_of(
    document: dict[str, Any], profile: EngineProfile, hop_s: float, front: GatewayOverhead = NO_COST
) -> FleetSpec:
    """The fleet that a configuration describes.

    The processor time of a request is part of the hop, so what is left of the hop beside it becomes delays.

    Args:
        document: The configuration.
        profile: Of all its engines.
        hop_s: What its messages and its HTTP take together for one request, on the way there and back.
        front: What its front end takes of a processor of its own; nothing where it has none.
    """
    request_s = min(front.request_s, hop_s)
    args = document["applications"][0]["args"]
    pools = tuple(
        PoolSpec(
            role=Role(pool["role"]),
            name=pool.get("name", ""),
            replicas=pool.get("replicas", 1),
            profile=profile,
            limits=profile.limits(
                max_num_seqs=pool.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS),
                max_num_batched_tokens=_engine_arg(args, pool, "max_num_batched_tokens"),
            ),
        )
        for pool in args["pools"]
    )
    num_messages = 2 * len(pools)  # there and back, for each stage
    network_delay_s = (hop_s - request_s) / (INGRESS_SHARE + num_messages)
    return FleetSpec(
        pools=pools,
        num_gateways=args.get("gateway", {}).get("replicas", 1),
        network_delay_s=network_delay_s,
        ingress_delay_s=INGRESS_SHARE * network_delay_s,
        flush_interval_s=args.get("gateway", {}).get("flush_interval_s", DEFAULT_FLUSH_INTERVAL_S),
        kv_lease_s=args.get("engine", {}).get("kv_lease_s", 30),
        gateway_request_s=request_s,
        gateway_chunk_s=front.chunk_s,
    )


def _engine_arg(args: dict[str, Any], pool: dict[str, Any], name: str) -> int | None:
    merged = {**args.get("engine", {}).get("args", {}), **pool.get("engine_args", {})}
    value: int | None = merged.get(name)
    return value


def dispatcher_of(document: dict[str, Any], fleet: FleetSpec) -> DispatcherSpec:
    """The dispatcher that a configuration describes, with its policies and the default limits."""
    policies = PoliciesConfig.model_validate(document["applications"][0]["args"]["policies"])
    pools, lent = fleet.roles_by_pool, fleet.whole_request_pools
    return policies.dispatcher_spec(pools, fleet.rates, DispatcherParams(), lent, num_gateways=fleet.num_gateways)

"""A deployment's counterpart in virtual time: what the simulator makes of its configuration, and runs of it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from cluster.config.policies import PoliciesConfig
from cluster.kv_links import KvLink
from cluster.scaled_pools import Autoscaling
from cluster.sim.run_table import RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec, PoolSpec
from cluster.sim.traffic import Traffic
from engines.model.profile import EngineProfile
from loadtests.drivers.live_run import LivePlan, LiveResult, judged
from loadtests.drivers.prompts import PromptsAlone
from loadtests.machine.gateway_overhead import NO_COST, GatewayOverhead
from loadtests.results.replica_counts import moments_of
from loadtests.results.run_folder import SIMULATOR, SavedRun
from policies.views import Role
from routing.config.spec import DispatcherParams, DispatcherSpec

DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_FLUSH_INTERVAL_S = 0.0
DEFAULT_SCALING_PERIOD_S = 10.0
"""All as in the deployments' configuration; a configuration file may say otherwise."""
INGRESS_SHARE = 2
"""A request's way through HTTP, parsing and tokenizing counts as so many messages between gateway and replica."""

ONE_NODE = ({"node": "this machine"},)
"""Where a deployment that the launcher starts has its replicas."""


def fleet_of(
    document: dict[str, Any], profile: EngineProfile, hop_s: float, front: GatewayOverhead = NO_COST
) -> FleetSpec:
    """The fleet that a configuration describes; what is left of the hop beside a request's processor time is delays.

    Args:
        document: The configuration.
        profile: Of all its engines.
        hop_s: What its messages and its HTTP take together for one request, on the way there and back.
        front: What its front end takes of a processor of its own; nothing where it has none.
    """
    request_s = min(front.request_s, hop_s)
    args = document["applications"][0]["args"]
    pools = tuple(_pool_of(pool, args, profile) for pool in args["pools"])
    num_messages = 2 * len(pools)  # there and back, for each stage
    network_delay_s = (hop_s - request_s) / (INGRESS_SHARE + num_messages)
    gateway, engine = args.get("gateway", {}), args.get("engine", {})
    return FleetSpec(
        pools=pools,
        num_gateways=gateway.get("replicas", 1),
        network_delay_s=network_delay_s,
        ingress_delay_s=INGRESS_SHARE * network_delay_s,
        flush_interval_s=gateway.get("flush_interval_s", DEFAULT_FLUSH_INTERVAL_S),
        kv_lease_s=engine.get("kv_lease_s", 30),
        kv_events=engine.get("kv_events", False),
        gateway_request_s=request_s,
        gateway_chunk_s=front.chunk_s,
        scaling_period_s=args.get("scaling_period_s", DEFAULT_SCALING_PERIOD_S),
        kv_links=tuple(KvLink(**each) for each in engine.get("kv_links", ())),
    )


def _pool_of(pool: dict[str, Any], args: dict[str, Any], profile: EngineProfile) -> PoolSpec:
    limits = profile.limits(
        max_num_seqs=pool.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS),
        max_num_batched_tokens=_engine_arg(args, pool, "max_num_batched_tokens"),
        long_prefill_token_threshold=_engine_arg(args, pool, "long_prefill_token_threshold") or 0,
        priority_scheduling=_engine_arg(args, pool, "scheduling_policy") == "priority",
    )
    drafts = (_engine_arg(args, pool, "speculative_config") or {}).get("num_speculative_tokens", 0)
    bounds = pool.get("autoscaling")
    return PoolSpec(
        role=Role(pool["role"]),
        name=pool.get("name", ""),
        replicas=pool.get("replicas", 1),
        profile=profile,
        limits=limits,
        speculation=profile.speculation(drafts),
        slowdown=_engine_arg(args, pool, "slowdown") or 1.0,
        autoscaling=Autoscaling(**{"min_replicas": 1, **bounds}) if bounds else None,
        start_s=pool.get("start_s"),
        dollars_per_h=pool.get("dollars_per_h", 1.0),
        places=ONE_NODE,
    )


def _engine_arg(args: dict[str, Any], pool: dict[str, Any], name: str) -> Any:
    return {**args.get("engine", {}).get("args", {}), **pool.get("engine_args", {})}.get(name)


def dispatcher_of(document: dict[str, Any], fleet: FleetSpec) -> DispatcherSpec:
    """The dispatcher that a configuration describes, with its policies and its limits."""
    args = document["applications"][0]["args"]
    gateway = args.get("gateway", {})
    limits = {each.name: gateway[each.name] for each in fields(DispatcherParams) if each.name in gateway}
    return PoliciesConfig.model_validate(args["policies"]).dispatcher_spec(
        fleet.roles_by_pool,
        fleet.rates,
        DispatcherParams(**limits),
        fleet.whole_request_pools,
        num_gateways=fleet.num_gateways,
        has_load_coordinator=gateway.get("load_coordinator", False),
        kv_lease_s=fleet.kv_lease_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterpart:
    """A deployment in virtual time.

    Args:
        document: The deployment's configuration.
        profile: Of all its engines.
        hop_s: As :func:`fleet_of` has it.
        front: Likewise.
        notes: What a reader of its runs has to know, a sentence each.
    """

    document: dict[str, Any]
    profile: EngineProfile
    hop_s: float = 0.0
    front: GatewayOverhead = NO_COST
    notes: tuple[str, ...] = ()

    @property
    def fleet(self) -> FleetSpec:
        """Its fleet."""
        return fleet_of(self.document, self.profile, self.hop_s, self.front)

    def simulate(self, traffic: Traffic, class_names: Sequence[str], seed: int = 0, until_s: float = inf) -> RunTable:
        """Runs traffic to its end; the arguments are :func:`cluster.sim.simulator.simulate`'s."""
        fleet = self.fleet
        dispatcher = dispatcher_of(self.document, fleet)
        return simulate(fleet, dispatcher, traffic, class_names, seed=seed, until_s=until_s)

    def run(self, plan: LivePlan) -> SavedRun:
        """The run of a plan, as its folder has it."""
        clients = plan.clients()
        names = plan.scenario.workload.class_names
        table = self.simulate(PromptsAlone(clients), names, plan.seed, plan.until_s)
        simulated = LiveResult(
            driver=SIMULATOR,
            target=f"the counterpart of a deployment, with {self.profile.name}",
            started_at="",
            table=table,
            details=(),
            health=None,
            abandoned=clients.abandoned,
            packages=("numpy",),
            moments=moments_of(table.replicas),
            notes=self.notes,
        )
        return judged(plan, simulated)

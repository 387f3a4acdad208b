"""How policies are named in a YAML file, the same in a deployment and in a simulated scenario."""

from collections.abc import Mapping

from cluster.config.lanes import LanesConfig
from cluster.config.named_policy import NamedPolicy, PolicyConfig
from cluster.config.slos import SlosConfig
from cluster.config.strict import Strict
from policies.catalog import PolicySpec
from policies.tenancy import NO_TERMS, TenantTermsByName
from policies.views import Role
from routing.config.spec import NO_TRACKER, DispatcherParams, DispatcherSpec
from routing.request.stages import NO_POOLS, PoolNames
from routing.sizing.geometry import ServiceRates


class PoliciesConfig(Strict):
    """A policy for every question, and the router's three tiers.

    Args:
        planning: Which steps does a request go through?
        lanes: Which class of size is it in, and which pools serve that?
        slos: What is it promised?
        length_prediction: How long will the answer be?
        prefixes: Which replica has how much of a prompt cached?
        admission: May this request come in?
        degradation: How may it be answered more cheaply?
        shedding: Is it among those that are given up now?
        preemption: Which sheddable requests in flight give their slots up?
        hedging: How long until a second attempt is sent?
        retrying: Is a request tried again whose replica was lost, and when?
        ejection: Which replicas get nothing for a while?
        engine_order: Which of its class goes next inside an engine?
        queueing: Which of the waiting goes next?
        balancing: Which replica takes it?
        scaling: How many replicas has each pool?
    """

    planning: NamedPolicy
    lanes: LanesConfig = LanesConfig()
    slos: SlosConfig = SlosConfig()
    length_prediction: NamedPolicy = PolicyConfig(name="max_tokens")
    prefixes: NamedPolicy = PolicyConfig(name=NO_TRACKER.name)
    admission: NamedPolicy = PolicyConfig(name="always_admit")
    degradation: NamedPolicy = PolicyConfig(name="never_degrade")
    shedding: NamedPolicy = PolicyConfig(name="never_shed")
    preemption: NamedPolicy = PolicyConfig(name="never_preempt")
    hedging: NamedPolicy = PolicyConfig(name="no_hedge")
    retrying: NamedPolicy = PolicyConfig(name="backoff")
    ejection: NamedPolicy = PolicyConfig(name="never_eject")
    engine_order: NamedPolicy = PolicyConfig(name="by_arrival")
    queueing: NamedPolicy = PolicyConfig(name="fcfs")
    balancing: NamedPolicy = PolicyConfig(name="least_work_left")
    scaling: NamedPolicy = PolicyConfig(name="fixed")

    def spec(self) -> PolicySpec:
        """The same as :func:`policies.catalog.build` takes it."""
        return PolicySpec(
            admission=self.admission.choice(),
            degradation=self.degradation.choice(),
            shedding=self.shedding.choice(),
            preemption=self.preemption.choice(),
            hedging=self.hedging.choice(),
            retrying=self.retrying.choice(),
            ejection=self.ejection.choice(),
            engine_order=self.engine_order.choice(),
            queueing=self.queueing.choice(),
            balancing=self.balancing.choice(),
            scaling=self.scaling.choice(),
        )

    def dispatcher_spec(
        self,
        pools: Mapping[str, Role],
        rates: ServiceRates,
        params: DispatcherParams,
        whole_request_pools: PoolNames = NO_POOLS,
        *,
        tenants: TenantTermsByName = NO_TERMS,
        num_gateways: int = 1,
        has_load_coordinator: bool = False,
        kv_lease_s: float = 30.0,
    ) -> DispatcherSpec:
        """What :func:`routing.assembly.build_dispatcher` makes dispatchers with these policies from.

        Args:
            pools: Role of each pool, by the pool's name.
            rates: How fast the engines are.
            params: Limits of the state machine.
            whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
            tenants: What tenants are entitled to, by name.
            num_gateways: Dispatchers that share the deployment's requests.
            has_load_coordinator: Whether they can tell one another anything.
            kv_lease_s: How long prefill engines hold KV that nobody pulls.
        """
        return DispatcherSpec(
            planner=self.planning.choice(),
            pools=pools,
            whole_request_pools=whole_request_pools,
            policies=self.spec(),
            lanes=self.lanes.spec(),
            slos=self.slos.slos(),
            length_prediction=self.length_prediction.choice(),
            prefixes=self.prefixes.choice(),
            rates=rates,
            kv_lease_s=kv_lease_s,
            params=params,
            tenants=tenants,
            num_gateways=num_gateways,
            has_load_coordinator=has_load_coordinator,
        )

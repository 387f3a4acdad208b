"""What a simulated fleet is made of, and how late its parts learn of one another."""

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.clock import NO_SKEW, ClockSkew
from cluster.kv_links import KvLink, check_links, place_of, slowdowns_of
from cluster.pacing import WAITING_FRACTION, max_ongoing_requests
from cluster.scaled_pools import Autoscaling, ScaledPool
from cluster.service_rates import service_rates
from engines.model.batching import BatchLimits
from engines.model.profile import EngineProfile
from engines.model.sequences import slowdown_between
from engines.model.speculation import NO_SPECULATION, Speculation
from engines.model.step_model import StepModelSpec
from policies.errors import ConfigError
from policies.views import Role
from routing.request.stages import PoolNames
from routing.sizing.geometry import ServiceRates

SHORTEST_PERIOD_S = 0.001
"""What comes more often is a mistake, and would take the simulator for ever."""

NOT_NEGATIVE = (
    "network_delay_s",
    "ingress_delay_s",
    "report_delay_s",
    "detection_delay_s",
    "stall_after_s",
    "load_coordinator_delay_s",
    "flush_interval_s",
    "gateway_request_s",
    "gateway_chunk_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Replicas that are alike.

    Args:
        role: What they do.
        name: Names the pool; a role's only pool is named after the role.
        replicas: How many.
        profile: The engine.
        limits: Bounds of a step.
        kv_capacity_tokens: Size of a KV cache; ``None`` takes the profile's.
        speculation: How answers are decoded.
        slowdown: How many times as long as the profile says a step takes: gateways go by the profile all the same.
        whole_requests: Whether prefill or decode replicas also take whole requests; unified ones take nothing else.
        waiting_fraction: How many requests a replica takes beyond those that fit into a step, as a share of these.
        autoscaling: Between how many replicas its size may change; ``None``: it does not.
        start_s: How long a replica takes to start; ``None`` takes the profile's.
        dollars_per_h: What a replica costs.
        places: Labels of its replicas' nodes, which these take in turn; none where links don't matter.
    """

    role: Role
    replicas: int
    profile: EngineProfile
    limits: BatchLimits
    kv_capacity_tokens: int | None = None
    speculation: Speculation = NO_SPECULATION
    slowdown: float = 1.0
    name: str = ""
    whole_requests: bool = False
    waiting_fraction: float = WAITING_FRACTION
    autoscaling: Autoscaling | None = None
    start_s: float | None = None
    dollars_per_h: float = 1.0
    places: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.role.value)
        if self.replicas < 1:
            raise ConfigError(f"pools.{self.name}.replicas", self.replicas, "1 or more")
        if self.autoscaling is not None and not self.autoscaling.allows(self.replicas):
            allowed = f"{self.autoscaling.min_replicas} to {self.autoscaling.max_replicas}, which autoscaling says"
            raise ConfigError(f"pools.{self.name}.replicas", self.replicas, allowed)

    @property
    def starts_in_s(self) -> float:
        """How long a replica takes to start."""
        return self.profile.start_s if self.start_s is None else self.start_s

    @property
    def num_warm(self) -> int:
        """Replicas beside the first ones that take no requests yet."""
        return 0 if self.autoscaling is None else self.autoscaling.num_warm(self.replicas)

    def scaled(self, autoscaling: Autoscaling) -> ScaledPool:
        """The pool as the scaler takes it."""
        return ScaledPool(
            role=self.role,
            autoscaling=autoscaling,
            start_s=self.starts_in_s,
            wake_s=self.profile.wake_s,
            dollars_per_h=self.dollars_per_h,
            step_s=self.rates.token_step_s,
            max_ongoing_requests=self.max_ongoing_requests,
            max_num_seqs=self.limits.max_num_seqs,
            kv_capacity_tokens=self.kv_capacity_tokens or self.profile.kv.capacity_tokens,
        )

    @property
    def max_ongoing_requests(self) -> int:
        """Requests that a replica takes at a time, from all gateways."""
        return max_ongoing_requests(self.limits.max_num_seqs, self.waiting_fraction)

    @property
    def steps(self) -> StepModelSpec:
        """One of its engines."""
        return self.profile.step_model(
            self.limits,
            kv_capacity_tokens=self.kv_capacity_tokens,
            speculation=self.speculation,
            slowdown=self.slowdown,
        )

    @property
    def rates(self) -> ServiceRates:
        """How fast its engines are taken to be."""
        return service_rates(self.profile, self.limits, self.limits.max_num_seqs, self.speculation)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """Gateways, pools and the delays between them. The defaults are what a deployment on Ray Serve has.

    Args:
        pools: At least one for each role that a plan can name.
        num_gateways: Gateways, each with a dispatcher and a view of its own.
        network_delay_s: Of a message between a gateway and a replica, one way.
        ingress_delay_s: From a request's arrival to its dispatcher: parsing and tokenizing.
        report_period_s: Between two reports of a replica.
        report_delay_s: From a report's making to its arrival at the gateways.
        detection_delay_s: From a replica's death to its gateways' knowing.
        stall_after_s: How long a replica's engine has requests and makes no step before it counts as one that stands
            still; 0: it never does.
        load_coordinator_delay_s: Of a message between a gateway and the load coordinator, one way.
        kv_lease_s: How long a prefill replica holds KV that nobody pulls.
        kv_events: Whether engines say what comes into their prefix caches and goes from them.
        flush_interval_s: Longest time that a token waits for company on its way out of a busy replica.
        gateway_request_s: Processor time of a request on its way through the gateway; requests take turns.
        gateway_chunk_s: Processor time of a chunk of a stream, which requests have to wait for.
        scaling_period_s: How often the policy is asked that says how many replicas the pools have with ``autoscaling``.
        kv_links: How fast KV comes from a replica that has something in common, the nearest first; from others by the
            profile's own link.
        gateway_clocks: How the clocks of gateways differ from the run's, by their numbers; those left out do not.

    Raises:
        ConfigError: No pool, two of the same name, one side of the handoff alone, or a number out of range.
    """

    pools: tuple[PoolSpec, ...]
    num_gateways: int = 1
    network_delay_s: float = 0.001
    ingress_delay_s: float = 0.001
    report_period_s: float = 0.5
    report_delay_s: float = 0.1
    detection_delay_s: float = 0.05
    stall_after_s: float = 2.0
    load_coordinator_delay_s: float = 0.005
    kv_lease_s: float = 30.0
    kv_events: bool = False
    flush_interval_s: float = 0.0
    gateway_request_s: float = 0.0
    gateway_chunk_s: float = 0.0
    scaling_period_s: float = 10.0
    kv_links: tuple[KvLink, ...] = ()
    gateway_clocks: tuple[ClockSkew, ...] = ()

    def __post_init__(self) -> None:
        roles, names = [pool.role for pool in self.pools], [pool.name for pool in self.pools]
        if not names or len(set(names)) != len(names):
            raise ConfigError("pools", names, "at least one pool, each name once; pools of the same role need names")
        if (Role.PREFILL in roles) != (Role.DECODE in roles):
            raise ConfigError("pools", [str(role) for role in roles], "prefill and decode, both or neither")
        if self.num_gateways < 1:
            raise ConfigError("gateways", self.num_gateways, "1 or more")
        check_links(self.kv_links)
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "0 or more")
        for name in ("report_period_s", "kv_lease_s", "scaling_period_s"):
            if getattr(self, name) < SHORTEST_PERIOD_S:
                raise ConfigError(name, getattr(self, name), f"{SHORTEST_PERIOD_S:g} or more")

    def clock_of(self, gateway: int) -> ClockSkew:
        """How the clock of a gateway differs, by its number."""
        return self.gateway_clocks[gateway] if gateway < len(self.gateway_clocks) else NO_SKEW

    @property
    def roles_by_pool(self) -> dict[str, Role]:
        """The role of each pool, by the pool's name."""
        return {pool.name: pool.role for pool in self.pools}

    @property
    def whole_request_pools(self) -> PoolNames:
        """Names of the prefill and decode pools whose replicas also take whole requests."""
        return tuple(pool.name for pool in self.pools if pool.whole_requests)

    @property
    def rates(self) -> ServiceRates:
        """What gateways take the engines to be like: those that compute prompts."""
        prefill = next(pool for pool in self.pools if pool.role is not Role.DECODE)
        decode = next(pool for pool in self.pools if pool.role is not Role.PREFILL)
        limits, most = prefill.limits, decode.limits.max_num_seqs
        return service_rates(prefill.profile, limits, most, decode.speculation, self.kv_links)

    def place(self, pool: PoolSpec, index: int) -> tuple[str, ...]:
        """Where a pool's replica is that has this place among the others."""
        return place_of(pool.places[index % len(pool.places)], self.kv_links) if pool.places else ()

    def link_slowdown(self, pool: PoolSpec, place: tuple[str, ...], other: tuple[str, ...]) -> float:
        """How many times as long as by its own link KV takes to a pool's replica from another place."""
        return slowdown_between(place, other, slowdowns_of(self.kv_links, pool.profile.kv.bandwidth_bytes_per_s))

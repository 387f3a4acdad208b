"""Fleets as a scenario file writes them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field

from cluster.kv_links import KvLink
from cluster.pacing import WAITING_FRACTION
from cluster.scaled_pools import Autoscaling
from cluster.sim.topology import FleetSpec, PoolSpec
from engines.model.profile import EngineProfile
from loadtests.schema.reading import ForDataclass, Located, Strict
from policies.errors import ConfigError
from policies.views import Role
from routing.config.spec import DispatcherParams, LeaderFirst


class SpeculativeConfig(Strict):
    """Speculative decoding, by vLLM's names.

    Args:
        num_speculative_tokens: Draft tokens of a sequence in a step; what they cost and how many are accepted is the
            engine profile's.
    """

    num_speculative_tokens: int = Field(ge=1)


class PoolConfig(Strict):
    """Replicas with the same role and the same engine. What is left out is the profile's own.

    Args:
        role: What they do.
        name: Names the pool; not needed by a role's only one.
        replicas: How many.
        max_num_seqs: Sequences that an engine runs in one step.
        max_num_batched_tokens: Tokens that it computes in one step.
        long_prefill_token_threshold: Most prompt tokens of one sequence in a step; 0 means no bound.
        priority_scheduling: Whether engines take waiting requests by priority.
        kv_capacity_tokens: KV tokens that an engine holds.
        speculative_config: How engines decode speculatively; left out, they do not.
        max_adapters: LoRA adapters that an engine keeps loaded; 0: it takes none.
        slowdown: How many times as long as the profile says a step takes: gateways go by the profile all the same.
        whole_requests: Whether prefill or decode replicas also take whole requests.
        waiting_fraction: How many requests a replica takes beyond those that fit into a step, as a share of these.
        autoscaling: Between how many replicas ``policies.scaling`` may change its size; left out, it does not.
        start_s: How long a replica takes to start.
        dollars_per_h: What a replica costs; 1 where it is left out.
        places: Labels of its replicas' nodes, such as ``{rack: a}``, which these take in turn; for ``kv_links``.
    """

    role: Role
    name: str = Field(default="", pattern=r"^([A-Za-z][A-Za-z0-9_-]*)?$")
    replicas: int = Field(ge=1, le=4096)
    max_num_seqs: int | None = Field(default=None, ge=1, le=65_536)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    priority_scheduling: bool = False
    kv_capacity_tokens: int | None = Field(default=None, ge=1)
    speculative_config: SpeculativeConfig | None = None
    max_adapters: int = Field(default=0, ge=0, le=4096)
    slowdown: float = Field(default=1.0, gt=0, le=1000)
    whole_requests: bool = False
    waiting_fraction: float = Field(default=WAITING_FRACTION, ge=0, le=10)
    autoscaling: Annotated[Autoscaling, Located()] | None = None
    start_s: float | None = Field(default=None, ge=0, le=86_400)
    dollars_per_h: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    places: tuple[dict[str, str], ...] = ()

    def build(self, profile: EngineProfile) -> PoolSpec:
        """The same as the simulator takes it.

        Raises:
            ConfigError: A limit that the engine can't have.
        """
        limits = profile.limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            priority_scheduling=self.priority_scheduling,
            max_adapters=self.max_adapters,
        )
        drafts = self.speculative_config.num_speculative_tokens if self.speculative_config else 0
        speculation = profile.speculation(drafts)
        profile.step_model(limits, kv_capacity_tokens=self.kv_capacity_tokens, speculation=speculation)
        return PoolSpec(
            role=self.role,
            name=self.name,
            replicas=self.replicas,
            profile=profile,
            limits=limits,
            kv_capacity_tokens=self.kv_capacity_tokens,
            speculation=speculation,
            slowdown=self.slowdown,
            whole_requests=self.whole_requests,
            waiting_fraction=self.waiting_fraction,
            autoscaling=self.autoscaling,
            start_s=self.start_s,
            dollars_per_h=self.dollars_per_h,
            places=self.places,
        )


class FleetConfig(Strict):
    """What serves the requests; what is left out is :class:`cluster.sim.topology.FleetSpec`'s own."""

    pools: tuple[PoolConfig, ...]
    num_gateways: int | None = Field(default=None, ge=1, le=1024)
    network_delay_s: float | None = None
    ingress_delay_s: float | None = None
    report_period_s: float | None = None
    report_delay_s: float | None = None
    detection_delay_s: float | None = None
    stall_after_s: float | None = None
    load_coordinator_delay_s: float | None = None
    flush_interval_s: float | None = None
    kv_lease_s: float | None = None
    kv_events: bool | None = None
    scaling_period_s: float | None = None
    kv_links: tuple[Annotated[KvLink, Located()], ...] | None = None

    @property
    def num_replicas(self) -> int:
        """Replicas in all, whatever their roles."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def replicas_by_role(self) -> Counter[Role]:
        """How many replicas of each role there are."""
        replicas = Counter[Role]()
        for pool in self.pools:
            replicas[pool.role] += pool.replicas
        return replicas

    def build(self, profile: EngineProfile) -> FleetSpec:
        """The same as the simulator takes it.

        Args:
            profile: Of every engine.

        Raises:
            ConfigError: Pools that don't fit together, or a number out of range.
        """
        pools = []
        for index, pool in enumerate(self.pools):
            with within(f"fleet.pools.{index}"):
                pools.append(pool.build(profile))
        given = {name: value for name, value in self if value is not None}
        with within("fleet"):
            return FleetSpec(**{**given, "pools": tuple(pools)})


class DispatcherConfig(ForDataclass):
    """Limits of each dispatcher; the fields of :class:`routing.config.spec.DispatcherParams`."""

    target = DispatcherParams

    max_attempts: int = Field(default=4, ge=2, le=16)
    max_fruitless_losses: int = Field(default=2, ge=1, le=16)
    leader_first: LeaderFirst = LeaderFirst.SUSPECT
    quarantine_s: float = Field(default=5.0, gt=0, le=86_400)
    probe_s: float = Field(default=2.0, ge=0, le=3_600)
    retry_after_s: float = Field(default=2.0, gt=0, le=86_400)
    prefill_window_tokens: int = Field(default=0, ge=0)
    ramp_stage_s: float = Field(default=0.5, ge=0, le=3_600)
    waiting_room_s: float = Field(default=30.0, ge=0, le=3_600)
    client_retry_window_s: float = Field(default=120.0, ge=0, le=86_400)


@contextmanager
def within(place: str) -> Iterator[None]:
    """Errors of what is built inside name their place in the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}.{error.field}", error.value, error.allowed) from error

"""What a user may write in the YAML's ``args``, validated at the edge and at once.

Unknown fields are errors, nothing is clamped, and every message names the field, the value and what is allowed.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AnyHttpUrl, ConfigDict, Field, ValidationError, model_validator

from cluster.config.policies import PoliciesConfig
from cluster.config.renamed import modernised
from cluster.config.strict import NO_BOOLEAN, Strict, misfit, refusal
from cluster.kv_links import KvLink, check_links
from cluster.pacing import WAITING_FRACTION, max_ongoing_requests
from cluster.scaled_pools import Autoscaling, ScaledPool
from cluster.service_rates import service_rates
from deployments.migration import main
from engines.contract import Adapter
from engines.model.batching import BatchLimits
from engines.model.profile import EngineProfile, load_profile
from engines.model.speculation import Speculation
from engines.vllm.connectors import HANDOFF, Connector, check_connectors
from policies.contracts import Need
from policies.errors import ConfigError
from policies.tenancy import NO_TERMS, TenantTermsByName
from policies.views import Role
from routing.config.spec import DispatcherParams, DispatcherSpec, LeaderFirst
from routing.sizing.geometry import ServiceRates

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds this application; relative model paths start here."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
OF_KV_CONNECTORS = {"kv_transfer_config", "kv_offloading_size", "kv_offloading_backend"}
"""Engine arguments that would take the place of the connector that hands KV over."""
START_S = 60.0
"""How long a replica takes to start where nobody says."""
STALLED_STEPS, UNKNOWN_STALL_S = 2.0, 10.0
"""An engine stands still that has taken so many times its longest step for one; where nobody knows that, so long."""
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "file")
"""Of buckets, as Arrow has them."""
NUM_REPLICAS, USER_CONFIG = "num_replicas", "user_config"
"""What Serve calls the size of a deployment, and what it hands to replicas that run."""
STEP_LIMITS = ("max_num_seqs", "max_num_batched_tokens")
"""Engine arguments that the router reckons with too."""
RANKS = "data_parallel_size"
"""The engine argument for engines of one replica that share its requests."""
ALIKE = {
    "max_num_seqs",
    "waiting_fraction",
    "model_path",
    "engine_args",
    "env",
    "num_gpus",
    "accelerator_type",
    "placement_group_strategy",
}
"""What two pools have in common whose replicas change roles."""
PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", RANKS)
"""Engine arguments that multiply to the workers of a replica."""


def resolved(path: str) -> str:
    """A folder as an absolute path, or the hub's name where no such folder exists."""
    folder = ROOT / path
    return str(folder) if folder.exists() else path


class PoolRole(StrEnum):
    """What a pool's replicas do: those of dispatchers, and ``pooling``, which vLLM calls how their engines run."""

    UNIFIED = Role.UNIFIED.value
    PREFILL = Role.PREFILL.value
    DECODE = Role.DECODE.value
    POOLING = "pooling"

    @property
    def stage(self) -> Role:
        """What they do of a request, to a dispatcher: a prompt that is pooled is a whole one."""
        return Role.UNIFIED if self is PoolRole.POOLING else Role(self.value)


def _named(resource: str) -> str:
    if not resource:
        raise misfit("", resource, "a resource's name, as Ray's nodes have it")
    return resource


Resources = dict[Annotated[str, AfterValidator(_named)], Annotated[float, Field(ge=0), NO_BOOLEAN]]
"""Custom resources of Ray's, and how much of each."""


class _Strict(Strict):
    model_config = ConfigDict(allow_inf_nan=False)


def scheme_of(place: str) -> str:
    """``s3`` of a bucket's URI; empty of a folder."""
    scheme, mark, _ = place.partition("://")
    return scheme if mark else ""


def _known_place(place: str) -> str:
    scheme, rest = scheme_of(place), place.partition("://")[2]
    if (scheme and (scheme not in SCHEMES or not rest.strip("/"))) or not place.isprintable() or place != place.strip():
        raise ValueError(f"a folder, or a bucket by {', '.join(SCHEMES)}")
    return place


class AdapterConfig(_Strict):
    """A LoRA adapter, which is a model of its own to clients.

    Args:
        id: Its name in the API.
        path: Folder of its checkpoint in PEFT's format, absolute or relative to the application's folder, on every
            node that has replicas, or a model hub's name.
    """

    id: str = Field(min_length=1)
    path: str = Field(min_length=1)

    def adapter(self) -> Adapter:
        """As engines take it."""
        return Adapter(self.id, resolved(self.path))


class ModelConfig(_Strict):
    """The model that is served.

    Args:
        id: Its name in the API.
        aliases: Other names that it answers to.
        adapters: LoRA adapters that every replica loads when it starts, as many as it keeps; more can be loaded later.
        adapter_store: A folder on every node, absolute or relative to the application's folder, or a bucket (``s3://``,
            ``gs://``, ``abfss://``), which has a folder for each further adapter. It is the model ``ID:FOLDER`` then,
            and loaded with its first request.
        path: Folder of the checkpoint, absolute or relative to the application's folder, or a model hub's name.
    """

    id: str = Field(min_length=1)
    aliases: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    adapters: list[AdapterConfig] = Field(default_factory=list)
    adapter_store: Annotated[str, Field(min_length=1), AfterValidator(_known_place)] | None = None
    path: str = Field(min_length=1)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it answers to, without those of its adapters."""
        return (self.id, *self.aliases)

    @property
    def ids(self) -> tuple[str, ...]:
        """Its own, and those of its adapters that the configuration lists."""
        return (self.id, *(each.id for each in self.adapters))

    @property
    def listed_adapters(self) -> tuple[Adapter, ...]:
        """Those that the configuration lists."""
        return tuple(each.adapter() for each in self.adapters)

    def at(self, path: str | None) -> "ModelConfig":
        """The same name for the checkpoint at another path, if one is given."""
        return self if path is None else self.model_copy(update={"path": path})

    def resolved_path(self) -> str:
        """The folder as an absolute path, or the hub's name where no such folder exists."""
        return resolved(self.path)


class EmulationConfig(_Strict):
    """What emulated engines emulate.

    Args:
        profile: The model on its machine: a name from ``engines/profiles``, or the path of a YAML file.
        speed: Model seconds in a real second.
        mean_output_tokens: Mean length of an answer that ends by itself.
        kv_capacity_tokens: Size of the KV cache, unless it is the profile's.
        kv_bandwidth_bytes_per_s: Of the link that KV comes to an engine by, likewise.
        start_s: How long an engine takes to start, in model seconds.
        seed: Of the sampling of requests that bring no seed.
    """

    profile: str = Field(min_length=1)
    speed: float = Field(default=1.0, ge=0.001, le=1000)
    mean_output_tokens: float = Field(default=200.0, ge=1, le=1_000_000)
    kv_capacity_tokens: int | None = Field(default=None, ge=1)
    kv_bandwidth_bytes_per_s: float | None = Field(default=None, gt=0)
    start_s: float = Field(default=0.0, ge=0, le=86_400)
    seed: int = 0

    def load_profile(self) -> EngineProfile:
        """What engines emulate.

        Raises:
            ConfigError: No such profile, or one that can't be read.
        """
        return _profile_of("engine.emulation.profile", self.profile)


def _profile_of(field: str, name: str) -> EngineProfile:
    try:
        return load_profile(name)
    except ConfigError as error:
        raise ConfigError(field, error.value, error.allowed) from error


class KvConnectorConfig(_Strict):
    """What hands an engine's KV over, or keeps it beside the engine's own cache; its name alone is short for one.

    Args:
        name: vLLM's name, one of those in docs/how-to/engines.md.
        extra_config: Its own settings, vLLM's ``kv_connector_extra_config``.
    """

    name: str = Field(min_length=1)
    extra_config: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _a_name_is_enough(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def connector(self) -> Connector:
        """As the engine takes it."""
        return Connector(self.name, self.extra_config)


class KvLinkConfig(_Strict):
    """How fast KV comes from replicas that have something in common.

    Args:
        same: A label of Ray's nodes, or ``node`` for the node itself: the link is between replicas on nodes for which
            it has the same value. Left out: between any.
        bandwidth_bytes_per_s: Of a transfer of KV.
    """

    same: str = ""
    bandwidth_bytes_per_s: float = Field(gt=0, allow_inf_nan=False)

    def link(self) -> KvLink:
        """As estimates and engines take it."""
        return KvLink(same=self.same, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)


class EngineConfig(_Strict):
    """How engines run, the same in every pool.

    Args:
        kind: Which engine.
        emulation: For ``emulated``: what.
        profile: What the router takes the engines to be like, for policies that reckon in seconds: a name from
            ``engines/profiles``, or the path of a YAML file. Emulated engines have theirs. Where engines have a
            ``speculative_config`` it says what part of the draft tokens is accepted.
        args: Passed on to the engine as they are: for vLLM the fields of ``AsyncEngineArgs``, for an emulated engine
            those of :class:`deployments.replica.emulation.EmulatedArgs`.
        env: Environment of each engine's process, set before it starts.
        kv_connectors: What hands KV over between prefill and decode replicas, which is ``NixlConnector``, and what
            keeps it in other places beside; an engine loads from the first that has a prompt's KV.
        kv_links: How fast KV comes from which replicas, the nearest first, and by the profile's link from the others;
            ``policies.balancing: least_delay`` goes by that.
        kv_buffer_device: Where transferred KV blocks live.
        kv_lease_s: How long a prefill replica holds blocks that nobody pulls, in whole seconds.
        kv_poll_interval_s: Pause between two looks at the KV transports; 0 means none, at the price of a core per
            engine, which buys a millisecond.
        log_engine_metrics: Whether vLLM's own metrics (``ray_vllm_...``) are exported by Ray's agents, on each node.
        kv_events: Whether engines say what comes into their prefix caches and goes from them; ``policies.prefixes``
            goes by that, beside what gateways send.
        stall_after_s: An engine that has requests and makes no step for so long is replaced.
    """

    kind: Literal["vllm", "emulated"] = "vllm"
    emulation: EmulationConfig | None = None
    profile: str | None = Field(default=None, min_length=1)
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    kv_connectors: tuple[KvConnectorConfig, ...] = (KvConnectorConfig(name=HANDOFF),)
    kv_links: tuple[KvLinkConfig, ...] = ()
    kv_buffer_device: Literal["cpu", "cuda"] = "cpu"
    kv_lease_s: int = Field(default=30, ge=6, le=3600)
    kv_poll_interval_s: float = Field(default=0.001, ge=0, le=0.1)
    log_engine_metrics: bool = False
    kv_events: bool = False
    stall_after_s: Seconds = 30.0

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> "EngineConfig":
        if self.kind == "vllm" and self.emulation is not None:
            raise misfit("emulation", self.emulation.model_dump(exclude_unset=True), "nothing, unless kind is emulated")
        if self.kind == "emulated" and self.emulation is None:
            raise misfit("emulation", None, "a mapping with a profile, when kind is emulated")
        if self.kind == "emulated" and self.profile is not None:
            raise misfit("profile", self.profile, "nothing, when kind is emulated: it is emulation.profile")
        return self

    @model_validator(mode="after")
    def _emulated_ones_have_nothing_that_is_vllms(self) -> "EngineConfig":
        if self.kind != "emulated":
            return self
        if self.log_engine_metrics:
            raise misfit("log_engine_metrics", True, "false, when kind is emulated: they are vLLM's")
        if self.kv_buffer_device != "cpu":
            raise misfit("kv_buffer_device", self.kv_buffer_device, "'cpu', when kind is emulated")
        if len(self.kv_connectors) > 1:
            names = [each.name for each in self.kv_connectors]
            raise misfit("kv_connectors", names, f"{HANDOFF} alone, when kind is emulated")
        return self

    @model_validator(mode="after")
    def _connectors_and_links_are_known(self) -> "EngineConfig":
        try:
            check_connectors([each.connector() for each in self.kv_connectors])
            check_links(self.links)
        except ConfigError as error:
            raise misfit(error.field, error.value, error.allowed) from error
        return self

    @property
    def links(self) -> tuple[KvLink, ...]:
        """Links between replicas."""
        return tuple(each.link() for each in self.kv_links)


class AutoscalingConfig(_Strict):
    """Between how many replicas ``policies.scaling`` may change a pool's size.

    Args:
        min_replicas: The fewest; 0 where other pools serve what comes meanwhile: the lanes that have this one borrow
            from lanes with another pool.
        max_replicas: The most, those that are warm included.
        warm_replicas: How many more have started and take no requests, as far as ``max_replicas`` has room for them:
            they are asleep where the engine can sleep, else idle. One that is needed wakes up in the place of a start.
        changes_roles: Whether replicas of this pool and of the other side of the handoff, which has to say so, too, may
            change roles: one that is needed more on the other side finishes what it has and serves there, without a
            start. Both pools' engines and machines are alike then, and neither has ``warm_replicas``.
    """

    min_replicas: int = Field(default=1, ge=0, le=4096)
    max_replicas: int = Field(ge=1, le=4096)
    warm_replicas: int = Field(default=0, ge=0, le=4096)
    changes_roles: bool = False

    @model_validator(mode="after")
    def _there_is_a_number_between(self) -> "AutoscalingConfig":
        if self.changes_roles and self.warm_replicas:
            raise misfit("warm_replicas", self.warm_replicas, "0 with changes_roles")
        if self.min_replicas > self.max_replicas:
            allowed = f"0 to max_replicas, which is {self.max_replicas}"
            raise misfit("min_replicas", self.min_replicas, allowed)
        return self

    def autoscaling(self) -> Autoscaling:
        """As the scaler takes it."""
        return Autoscaling(
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            warm_replicas=self.warm_replicas,
            changes_roles=self.changes_roles,
        )


class IsolationConfig(_Strict):
    """What each replica of a pool has of its node for itself.

    Args:
        cpu_cores: Cores that no other replica with ``cpu_cores`` gets, all of one NUMA node; the replica and its
            engine's processes run on these alone. At most the pool's ``num_cpus``. 0: it runs where it may.
        lock_memory: Whether the replica's process is never swapped out, and its engine's processes may have as much
            memory pinned as they like, as RDMA needs it. Takes an unlimited ``ulimit -H -l``.
    """

    cpu_cores: int = Field(default=0, ge=0, le=4096)
    lock_memory: bool = False


def _shares_of_gpus(num_gpus: float) -> float:
    if num_gpus > 1 and not num_gpus.is_integer():
        raise misfit("", num_gpus, "0 to 1, or a whole number: Ray shares out one GPU, and no part of a second one")
    return num_gpus


class PoolConfig(_Strict):
    """One pool of replicas with the same role: one Serve deployment.

    Args:
        name: The deployment's name.
        role: What its replicas do: answer whole requests (``unified``), compute prompts or answers (``prefill``,
            ``decode``), or make a vector of each prompt (``pooling``): an embedding, or the score of two texts.
        replicas: How many; with ``autoscaling``, how many at first.
        autoscaling: Between how many ``policies.scaling`` may change that; it does not when not given.
        start_s: How long a replica takes to start, for scaling policies that look ahead, until one has been seen to.
            When not given, what the emulation says, or the engine profile; a minute where there is none.
        dollars_per_h: What a replica costs, for scaling policies with a budget; 1 when not given.
        max_num_seqs: Sequences that an engine of this pool runs in one step, or each of its data-parallel ranks;
            decides how many requests a replica takes at a time.
        waiting_fraction: How many requests a replica takes beyond ``max_num_seqs``, as a share of it. They wait inside
            the engine, so that it never runs dry; with 0 all waiting is done at the gateway, which preemption needs to
            make room in the engine's step.
        whole_requests: Whether prefill or decode replicas also take whole requests, for planners that plan so.
        model_path: Another checkpoint than ``model.path``, with the same tokenizer: a smaller one, for a fallback lane.
        engine_args: Laid over ``engine.args``.
        env: Laid over ``engine.env``.
        num_cpus: CPUs that Ray sets aside for a replica.
        num_gpus: GPUs likewise, of all its workers: as many as ``tensor_parallel_size`` x ``pipeline_parallel_size``
            x ``data_parallel_size`` of its engine arguments where there are several.
        accelerator_type: The GPUs' type, by Ray's name for it, such as ``H100``.
        placement_group_strategy: Makes a replica a placement group with a bundle for each worker, perhaps on several
            nodes: ``PACK``: on few; ``SPREAD``: on many; ``STRICT_PACK``: on one or not at all; ``STRICT_SPREAD``: each
            on one of its own or not at all. Workers are actors of Ray then. When not given, a replica is on one node,
            and vLLM starts its workers there.
        isolation: What each replica has of its node for itself; not with ``placement_group_strategy``, as workers are
            processes of Ray's then.
        resources: Custom Ray resources that a node must have, such as ``{"prefill": 1}``; with a placement group the
            node of each worker.
        label_selector: Ray node labels that a node must have, likewise.
        health_check_period_s: How often Serve looks after a replica.
        graceful_shutdown_timeout_s: How long a replica that is taken away may finish what it has begun.
    """

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    role: PoolRole
    replicas: int = Field(default=1, ge=1, le=4096)
    autoscaling: AutoscalingConfig | None = None
    start_s: float | None = Field(default=None, ge=0, le=86_400)
    dollars_per_h: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    max_num_seqs: int = Field(default=128, ge=1, le=65_536)
    waiting_fraction: float = Field(default=WAITING_FRACTION, ge=0, le=10)
    whole_requests: bool = False
    model_path: str | None = Field(default=None, min_length=1)
    engine_args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    num_cpus: float = Field(default=1.0, ge=0)
    num_gpus: Annotated[float, Field(ge=0), AfterValidator(_shares_of_gpus)] = 0.0
    accelerator_type: str | None = Field(default=None, min_length=1)
    placement_group_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = None
    isolation: IsolationConfig = IsolationConfig()
    resources: Resources = Field(default_factory=dict)
    label_selector: dict[str, str] = Field(default_factory=dict)
    health_check_period_s: Seconds = 2.0
    graceful_shutdown_timeout_s: Seconds = 20.0

    @model_validator(mode="after")
    def _begins_with_a_size_that_it_may_have(self) -> "PoolConfig":
        bounds = self.autoscaling
        if bounds is not None and not bounds.min_replicas <= self.replicas <= bounds.max_replicas:
            allowed = f"{bounds.min_replicas} to {bounds.max_replicas}, which autoscaling says"
            raise misfit("replicas", self.replicas, allowed)
        return self

    @model_validator(mode="after")
    def _is_isolated_where_it_can_be(self) -> "PoolConfig":
        if self.isolation.cpu_cores > self.num_cpus:
            allowed = f"0 to num_cpus, which is {self.num_cpus:g}: what Ray sets aside for a replica"
            raise misfit("isolation.cpu_cores", self.isolation.cpu_cores, allowed)
        if self.isolation != IsolationConfig() and self.placement_group_strategy is not None:
            allowed = "nothing with placement_group_strategy: workers are processes of Ray's then"
            raise misfit("isolation", self.isolation.model_dump(exclude_defaults=True), allowed)
        return self

    @property
    def stage(self) -> Role:
        """What its replicas do of a request, to a dispatcher."""
        return self.role.stage

    @property
    def may_have_none(self) -> bool:
        """Whether it may have no replica that takes requests, as others serve its lanes then."""
        return self.autoscaling is not None and self.autoscaling.min_replicas == 0

    @property
    def keeps_warm(self) -> bool:
        """Whether some of its replicas may be warm, now or later."""
        return self.autoscaling is not None and self.autoscaling.warm_replicas > 0

    @property
    def changes_roles(self) -> bool:
        """Whether its replicas may serve the other side of the handoff."""
        return self.autoscaling is not None and self.autoscaling.changes_roles

    @property
    def num_warm_at_first(self) -> int:
        """Replicas beside the first ones that take no requests yet."""
        return 0 if self.autoscaling is None else self.autoscaling.autoscaling().num_warm(self.replicas)

    def max_ongoing_requests(self, engine: EngineConfig) -> int:
        """Requests that a replica takes at a time, from all gateways.

        Raises:
            ConfigError: As :meth:`args_over`.
        """
        return max_ongoing_requests(self.max_num_seqs * self.num_ranks(engine), self.waiting_fraction)

    def num_ranks(self, engine: EngineConfig) -> int:
        """Engines that a replica is, each with the whole model and its own part of the requests.

        Raises:
            ConfigError: As :meth:`args_over`.
        """
        ranks: int = self.args_over(engine).get(RANKS, 1)
        return ranks

    def args_over(self, engine: EngineConfig) -> dict[str, Any]:
        """What this pool's engines are started with: its own arguments laid over those of all engines.

        Raises:
            ConfigError: A limit of a step, or a parallel size, that is not a whole number above 0, what would take the
                place of ``engine.kv_connectors``, or a ``runner`` that is another role's.
        """
        args = {"max_num_seqs": self.max_num_seqs, **engine.args, **self.engine_args}
        self._check_runner(args)
        for name in args.keys() & OF_KV_CONNECTORS:
            raise ConfigError(f"{self.place_of(name)}.{name}", args[name], "nothing: engine.kv_connectors has them all")
        for limit in (*STEP_LIMITS, *PARALLEL_SIZES):
            value = args.get(limit)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{self.place_of(limit)}.{limit}", value, "a whole number, at least 1")
        if self.placement_group_strategy is not None and engine.kind == "vllm":
            args.setdefault("distributed_executor_backend", "ray")  # vLLM's own executor has workers on one node
        return args

    def _check_runner(self, args: dict[str, Any]) -> None:
        """Engines of a pool that pools run as vLLM has it, and no others do."""
        runner = args.get("runner", "auto")
        pools = self.role is PoolRole.POOLING
        if runner not in ("auto", "pooling" if pools else "generate"):
            place = f"{self.place_of('runner')}.runner"
            raise ConfigError(place, runner, "nothing: it is pooling in pools with that role, and in no others")
        if pools:
            args["runner"] = "pooling"

    def num_speculative_tokens(self, engine: EngineConfig) -> int:
        """Draft tokens of a sequence in a step of its engines; 0: none.

        Raises:
            ConfigError: ``speculative_config`` without a whole number of them, or as :meth:`args_over`.
        """
        config = self.args_over(engine).get("speculative_config")
        if config is None:
            return 0
        number = config.get("num_speculative_tokens") if isinstance(config, dict) else None
        if type(number) is not int or number < 1:
            place = f"{self.place_of('speculative_config')}.speculative_config"
            raise ConfigError(place, config, "num_speculative_tokens: a whole number, at least 1")
        return number

    def place_of(self, engine_arg: str) -> str:
        """Where an engine argument of its engines stands."""
        return f"pools.{self.name}.engine_args" if engine_arg in self.engine_args else "engine.args"

    def num_workers(self, engine: EngineConfig) -> int:
        """Processes that share the model of a replica, a GPU each where there are any.

        Raises:
            ConfigError: As :meth:`args_over`.
        """
        args = self.args_over(engine)
        return math.prod(args.get(size, 1) for size in PARALLEL_SIZES)


class ResponseCacheConfig(_Strict):
    """Answers that each gateway replica keeps, for the degradation policy ``from_cache``.

    Args:
        max_bytes: What they take together at the most; those that were not used for the longest time go first.
        ttl_s: How long one is kept.
    """

    max_bytes: int = Field(default=64 * 1024 * 1024, ge=4096, le=1 << 40)
    ttl_s: Seconds = 300.0


class VllmFrontEndConfig(_Strict):
    """vLLM's own OpenAI layer, for what the gateway's does not serve; names and meanings are vLLM's.

    Args:
        tool_call_parser: Reads tool calls out of what the model has written, in the way of its family.
        enable_auto_tool_choice: Whether a model may call tools by itself (``tool_choice: auto``).
        reasoning_parser: Tells what the model thinks from what it answers, here and, for what answers have to match, in
            vLLM's engines; every chat takes this way then.
        chat_template: A file, or the template itself, in place of the model's; every chat takes this way then.
        max_requests: Most answers that one HTTP request may ask for: its prompts times its choices.
        max_inputs: Most texts that one HTTP request may have embedded, or scored against another one.
    """

    tool_call_parser: str | None = Field(default=None, min_length=1)
    enable_auto_tool_choice: bool = False
    reasoning_parser: str | None = Field(default=None, min_length=1)
    chat_template: str | None = Field(default=None, min_length=1)
    max_requests: int = Field(default=256, ge=1, le=4096)
    max_inputs: int = Field(default=2048, ge=1, le=65_536)

    @model_validator(mode="after")
    def _auto_needs_a_parser(self) -> "VllmFrontEndConfig":
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise misfit("enable_auto_tool_choice", True, "false without a tool_call_parser")
        return self

    @property
    def takes_all_chats(self) -> bool:
        """Whether the gateway's own layer would make another prompt, or another answer, of a plain chat."""
        return self.reasoning_parser is not None or self.chat_template is not None


class EdgeTlsConfig(_Strict):
    """TLS between clients and gateways, where no proxy is in front of them. Files are absolute, or relative to the
    application's folder, on every node that has gateways, and are read again when they have changed.

    Args:
        certificate: PEM file: the certificate of what clients connect to, and those up to its authority.
        key: PEM file: its private key, without a passphrase.
        client_authorities: PEM file: whoever asks for anything but ``/health``, ``/ready`` and ``/metrics`` needs a
            certificate that one of these authorities has signed; nobody does when not given.
    """

    certificate: str = Field(min_length=1)
    key: str = Field(min_length=1)
    client_authorities: str | None = Field(default=None, min_length=1)

    @property
    def paths(self) -> Sequence[str]:
        """All files."""
        return [each for each in (self.certificate, self.key, self.client_authorities) if each is not None]


class GatewayConfig(_Strict):
    """The replicas that clients talk to.

    Args:
        replicas: How many.
        num_cpus: CPUs that Ray sets aside for each.
        resources: Custom Ray resources that a node must have.
        label_selector: Ray node labels that a node must have.
        graceful_shutdown_timeout_s: How long a gateway that is taken away may finish the streams it has open.
        max_body_bytes: Longest request body; a longer one is refused with 413.
        connections_per_client: Most connections that a gateway without a proxy in front has of one address, or of one
            /64 of IPv6; any number when not given. Behind a load balancer, all come from its address.
        tls: How connections of clients are encrypted, without a proxy in front; not at all when not given.
        request_timeout_s: How long a request may take, from arrival to its last token.
        inner_hop: How attempts get to replicas: over one ``connection`` for each pair of a gateway and a replica, or
            each over a ``ray_handle``, which costs several times the processor time.
        flush_interval_s: Longest time that a token waits for company on its way out of a busy replica; with
            ``ray_handle`` 0.05 saves much.
        max_attempts: Dispatches that one request may lead to, of its prefill and of its decode each; they are counted
            anew when an attempt of it has emitted 16 tokens and more.
        max_fruitless_losses: Replicas that are lost with a request's prefill or with its decode, or stand still with
            it, before it has got any further: it is given up with the last of them, as they may have died of it.
        leader_first: When one of the requests with one prompt, such as the choices of one, goes before the others:
            ``suspect``, once a replica was lost with that prompt, until an answer to it is complete; ``always``, until
            the prompt is computed for the first one, so that it takes no more replicas than a single request would and
            prefix caches have it; ``never``. Each gateway goes by its own requests.
        quarantine_s: How long nothing is sent to a replica after it was lost.
        probe_s: How long a replica that was out because its engine failed may take for a small request of a gateway's
            own, which has to go well before it gets clients' again; of one that was slow the profile says it. 0:
            clients' requests show whether either is well.
        stall_after_s: A replica that says nothing for so long, or whose engine has requests and makes no step, gets no
            more, and what it has goes on at others where there are any, until it moves again. A step may take twice as
            long as the engine profile says of the longest there can be, and ten seconds without a profile. 0: nobody
            looks.
        prefill_window_tokens: Prompt tokens that a replica is given at a time; further requests wait at the gateway,
            where they can be put in order, expire and be refused. 0: as many as it takes requests.
        ramp_stage_s: How long a stage of a replica that has just started lasts: each gateway has one attempt at a time
            there in the first stage, and twice as many in each that follows. 0: as many as it takes from the start.
        waiting_room_s: How long requests wait for a pool that has lost its last replica, as far as their deadlines have
            room for that, and the answers that it was giving; they also wait for replicas that are out. 0: they are
            refused, or fail, at once.
        retry_after_s: What a refused client is told when no policy knows better.
        keep_answers_s: How long replicas keep what was streamed to clients that send an ``idempotency-key``: should
            their gateway be lost, they get the rest from another one by ``Last-Event-ID``. Tokens are kept alone, no
            slot and no KV; over ``ray_handle`` none are. 0: nothing is.
        client_retry_window_s: How long a request that was not answered is remembered: a retry of its client's has what
            is left of its time, here and, with ``load_coordinator``, at every other gateway. 0: a retry is a request
            like any other.
        prefix_block_tokens: Tokens in a block of what ``policies.prefixes`` keeps track of; a multiple of the
            engines' KV block. Shorter blocks find more and cost more.
        seed: Of all random streams; each of several gateway replicas mixes in its own id.
        tenants: Who may use the deployment: a YAML file, absolute or relative to the application's folder, or
            ``env:NAME`` for a variable of the environment that holds the YAML; see
            :mod:`deployments.tenants.tenants_file`. Anybody may when not given.
        response_cache: Answers to greedy requests that are kept for equal ones; none are when not given.
        vllm_front_end: vLLM's OpenAI layer in each gateway, at the price of about 400 MB: tools, several choices,
            batches of prompts, ``echo``, reasoning; those are refused when not given. What the gateway's own layer
            serves does not take that way. Models with pools of the role ``pooling`` need it.
        load_coordinator: Whether there is an actor through which gateways know of one another's load and of what was
            not answered; what ``policies.shedding: shared_fraction`` needs, and several gateways to know a client's
            retry wherever it goes.
        event_log: Folder, absolute or relative to the application's folder, in which each gateway replica keeps a log
            of all events and effects; none is kept when not given.
        audit_log: Folder, likewise, in which each gateway replica notes who loads and unloads adapters, whose calls are
            refused with 401 or 403, and which configurations come; nothing is noted when not given.
        live_page: Whether each gateway shows people at ``/`` what goes on: no prompts, no tenants and no keys.
    """

    replicas: int = Field(default=1, ge=1, le=1024)
    num_cpus: float = Field(default=0.5, ge=0)
    resources: Resources = Field(default_factory=dict)
    label_selector: dict[str, str] = Field(default_factory=dict)
    graceful_shutdown_timeout_s: Seconds = 20.0
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, le=1 << 30)
    connections_per_client: int | None = Field(default=None, ge=1)
    tls: EdgeTlsConfig | None = None
    request_timeout_s: Seconds = 600.0
    inner_hop: Literal["connection", "ray_handle"] = "connection"
    flush_interval_s: float = Field(default=0.0, ge=0, le=1)
    max_attempts: int = Field(default=4, ge=2, le=16)
    max_fruitless_losses: int = Field(default=2, ge=1, le=16)
    leader_first: LeaderFirst = LeaderFirst.SUSPECT
    quarantine_s: Seconds = 5.0
    probe_s: float = Field(default=2.0, ge=0, le=3_600)
    stall_after_s: float = Field(default=2.0, ge=0, le=3_600)
    prefill_window_tokens: int = Field(default=0, ge=0)
    ramp_stage_s: float = Field(default=0.5, ge=0, le=3_600)
    waiting_room_s: float = Field(default=30.0, ge=0, le=3_600)
    retry_after_s: Seconds = 2.0
    keep_answers_s: float = Field(default=30.0, ge=0, le=3_600)
    client_retry_window_s: float = Field(default=120.0, ge=0, le=86_400)
    prefix_block_tokens: int = Field(default=64, ge=1, le=65_536)
    seed: int = 0
    tenants: str | None = Field(default=None, min_length=1)
    response_cache: ResponseCacheConfig | None = None
    vllm_front_end: VllmFrontEndConfig | None = None
    load_coordinator: bool = False
    event_log: str | None = Field(default=None, min_length=1)
    audit_log: str | None = Field(default=None, min_length=1)
    live_page: bool = True


def _with_host_and_port(url: str) -> str:
    """Pydantic's own type knows a wrong port or host, but writes the URL anew."""
    AnyHttpUrl(url)
    return url


class TracingConfig(_Strict):
    """Where traces of requests go: an OTLP collector, over HTTP.

    Args:
        endpoint: Its URL, path and all.
        sampled_fraction: Part of the requests that are traced, of those whose client says nothing about it; a client
            that sends ``traceparent`` decides itself.
        service_name: What gateways are called in traces.
    """

    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/]+/\S+$"), AfterValidator(_with_host_and_port)]
    sampled_fraction: float = Field(default=0.01, ge=0, le=1)
    service_name: str = Field(default="spillway", min_length=1)


class AppConfig(_Strict):
    """The whole application, or the part of it that serves one of several ``models``.

    Args:
        model: What is served; ``models`` in its place, where there are several.
        engine: How engines run, the same in every pool.
        pools: Prefill and decode, unified, or all of them; or pooling alone.
        gateway: The replicas that clients talk to.
        tracing: Where traces go; there are none when not given.
        policies: A policy for every question.
        scaling_period_s: How often ``policies.scaling`` is asked how many replicas the pools have with ``autoscaling``.
        allow_unauthenticated_cluster: Whether gateways and replicas also start on a Ray cluster that wants no token,
            where anyone who reaches a port of Ray's can run code.
    """

    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    pools: list[PoolConfig] = Field(min_length=1)
    gateway: GatewayConfig = GatewayConfig()
    tracing: TracingConfig | None = None
    policies: PoliciesConfig
    scaling_period_s: float = Field(default=10.0, ge=1, le=86_400)
    allow_unauthenticated_cluster: bool = False

    @model_validator(mode="before")
    @classmethod
    def _reads_old_names(cls, document: Any) -> Any:
        return modernised(document)

    @model_validator(mode="before")
    @classmethod
    def _engines_parse_reasoning_too(cls, document: Any) -> Any:
        """A structured output begins where the reasoning ends, and the engine has to know where."""
        found = document
        for name in ("gateway", "vllm_front_end", "reasoning_parser"):
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, str):
            return document
        engine = document.get("engine") or {}
        if not isinstance(engine, dict) or engine.get("kind", "vllm") != "vllm":
            return document
        args = {"reasoning_parser": found, **(engine.get("args") or {})}
        return {**document, "engine": {**engine, "args": args}}

    @model_validator(mode="before")
    @classmethod
    def _engines_take_adapters(cls, document: Any) -> Any:
        """Where the model has some."""
        model = document.get("model") if isinstance(document, dict) else None
        if not isinstance(model, dict) or not (model.get("adapters") or model.get("adapter_store")):
            return document
        engine = document.get("engine") or {}
        if not isinstance(engine, dict):
            return document
        return {**document, "engine": {**engine, "args": {"enable_lora": True, **(engine.get("args") or {})}}}

    @model_validator(mode="after")
    def _pools_fit_together(self) -> "AppConfig":
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise misfit("pools", names, "each name once")
        roles = [pool.role for pool in self.pools]
        if (PoolRole.PREFILL in roles) != (PoolRole.DECODE in roles):
            raise misfit("pools", [role.value for role in roles], "prefill and decode, both or neither")
        if PoolRole.POOLING in roles and set(roles) != {PoolRole.POOLING}:
            raise misfit("pools", [role.value for role in roles], "pooling alone, in a model of its own in models")
        return self

    @model_validator(mode="after")
    def _pools_that_change_roles_are_alike(self) -> "AppConfig":
        changing = [pool for pool in self.pools if pool.changes_roles]
        if changing and sorted(pool.role for pool in changing) != [PoolRole.DECODE, PoolRole.PREFILL]:
            names = [pool.name for pool in changing]
            allowed = "true in one prefill and one decode pool, or in none"
            raise misfit("pools.autoscaling.changes_roles", names, allowed)
        first, second = (pool.model_dump(include=ALIKE) for pool in changing) if changing else ({}, {})
        for name, value in second.items():
            if value != first[name]:
                allowed = f"{first[name]!r}, as in {changing[0].name}: replicas that change roles are alike"
                raise misfit(f"pools.{changing[1].name}.{name}", value, allowed)
        return self

    @property
    def role_pairs(self) -> Mapping[str, str]:
        """The pools whose replicas change roles, each with the other one."""
        names = [pool.name for pool in self.pools if pool.changes_roles]
        return dict(zip(names, reversed(names), strict=True))

    @model_validator(mode="after")
    def _what_is_pooled_is_asked_for_in_vllms_layer(self) -> "AppConfig":
        if self.pools_prompts and self.gateway.vllm_front_end is None:
            allowed = "{} at least, where a pool has the role pooling: it reads what such a model is asked"
            raise misfit("gateway.vllm_front_end", None, allowed)
        return self

    @property
    def pools_prompts(self) -> bool:
        """Whether the model makes vectors of prompts, and gives no answers."""
        return self.pools[0].role is PoolRole.POOLING

    @property
    def roles(self) -> frozenset[Role]:
        """Roles that have a pool, as dispatchers have them."""
        return frozenset(pool.stage for pool in self.pools)

    @property
    def provided(self) -> frozenset[Need]:
        """What gateways of this configuration can supply policies with.

        Claims they can where engines ask for them: vLLM's scheduler takes a request from its line without asking.
        """
        has = {
            Need.RESPONSE_CACHE: self.gateway.response_cache,
            Need.LOAD_COORDINATOR: self.gateway.load_coordinator,
            Need.CLAIMS: self.engine.kind == "emulated",
            Need.ENGINE_PRIORITY: all(map(self._goes_by_priority, self.pools)),
        }
        return frozenset(need for need in Need if has.get(need, True))

    def _goes_by_priority(self, pool: PoolConfig) -> bool:
        is_scheduled = pool.args_over(self.engine).get("scheduling_policy") == "priority"
        return is_scheduled or pool.stage is Role.DECODE

    def service_rates(self) -> ServiceRates:
        """What the router takes the engines to be like, going by the first pool for prompts and the first for answers.

        All zeros when nobody says.
        """
        profile = self._profile()
        if profile is None:
            return ServiceRates()
        prefill = next((pool for pool in self.pools if pool.stage is not Role.DECODE), self.pools[0])
        decode = next((pool for pool in self.pools if pool.stage is not Role.PREFILL), self.pools[0])
        rates = service_rates(
            profile,
            self._limits(prefill, profile),
            self._limits(decode, profile).max_num_seqs,
            self._speculation(decode, profile),
            self.engine.links,
        )
        return rates.times(1.0 / self._speed)

    def engine_stall_s(self, pool: PoolConfig) -> float:
        """How long an engine of a pool may make no step before gateways take its requests elsewhere; 0: for ever."""
        profile, least_s = self._profile(), self.gateway.stall_after_s
        if profile is None or not least_s:
            return max(least_s, UNKNOWN_STALL_S) if least_s else 0.0
        limits = self._limits(pool, profile)
        rates = service_rates(profile, limits, limits.max_num_seqs)
        context_tokens = pool.args_over(self.engine).get("max_model_len") or profile.context_tokens
        return max(least_s, STALLED_STEPS * rates.longest_step_s(context_tokens) / self._speed)

    def scaled_pools(self) -> dict[str, ScaledPool]:
        """Pools whose size may change, by name, as the scaler takes them."""
        profile, emulation = self._profile(), self.engine.emulation
        start_s = emulation.start_s / self._speed if emulation else profile.start_s if profile else START_S
        own_tokens = profile.kv.capacity_tokens if profile else 1
        capacity_tokens = (emulation.kv_capacity_tokens if emulation else None) or own_tokens
        return {
            pool.name: ScaledPool(
                role=pool.stage,
                autoscaling=pool.autoscaling.autoscaling(),
                start_s=start_s if pool.start_s is None else pool.start_s,
                wake_s=profile.wake_s / self._speed if profile else 0.0,
                dollars_per_h=pool.dollars_per_h,
                step_s=self._token_step_s(pool),
                max_ongoing_requests=pool.max_ongoing_requests(self.engine),
                max_num_seqs=pool.max_num_seqs * pool.num_ranks(self.engine),
                kv_capacity_tokens=pool.num_ranks(self.engine) * capacity_tokens,
            )
            for pool in self.pools
            if pool.autoscaling is not None
        }

    def _token_step_s(self, pool: PoolConfig) -> float:
        profile = self._profile()
        if profile is None:
            return 0.0
        limits, speculation = self._limits(pool, profile), self._speculation(pool, profile)
        return service_rates(profile, limits, limits.max_num_seqs, speculation).token_step_s / self._speed

    def _speculation(self, pool: PoolConfig, profile: EngineProfile) -> Speculation:
        number = pool.num_speculative_tokens(self.engine)
        try:
            return profile.speculation(number)
        except ConfigError as error:
            raise ConfigError(f"pools.{pool.name}.{error.field}", error.value, error.allowed) from error

    def _profile(self) -> EngineProfile | None:
        """What engines are taken to be like, if anybody says."""
        emulation = self.engine.emulation
        if emulation is not None:
            return emulation.load_profile()
        return None if self.engine.profile is None else _profile_of("engine.profile", self.engine.profile)

    @property
    def _speed(self) -> float:
        """Model seconds in a real second."""
        return self.engine.emulation.speed if self.engine.emulation else 1.0

    def _limits(self, pool: PoolConfig, profile: EngineProfile) -> BatchLimits:
        num_seqs, num_tokens = (pool.args_over(self.engine).get(limit) for limit in STEP_LIMITS)
        try:
            return profile.limits(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens)
        except ConfigError as error:
            raise ConfigError(f"{pool.place_of(error.field)}.{error.field}", error.value, error.allowed) from error

    def dispatcher_spec(self, tenants: TenantTermsByName = NO_TERMS) -> DispatcherSpec:
        """What :func:`routing.assembly.build_dispatcher` makes each gateway's dispatcher from.

        Args:
            tenants: What the tenants are entitled to whom ``gateway.tenants`` names.
        """
        params = DispatcherParams(
            max_attempts=self.gateway.max_attempts,
            max_fruitless_losses=self.gateway.max_fruitless_losses,
            leader_first=self.gateway.leader_first,
            quarantine_s=self.gateway.quarantine_s,
            probe_s=self.gateway.probe_s,
            prefill_window_tokens=self.gateway.prefill_window_tokens,
            ramp_stage_s=self.gateway.ramp_stage_s,
            waiting_room_s=self.gateway.waiting_room_s,
            retry_after_s=self.gateway.retry_after_s,
            client_retry_window_s=self.gateway.client_retry_window_s,
        )
        roles = {pool.name: pool.stage for pool in self.pools}
        whole = tuple(pool.name for pool in self.pools if pool.whole_requests)
        return self.policies.dispatcher_spec(
            roles,
            self.service_rates(),
            params,
            whole,
            tenants=tenants,
            num_gateways=self.gateway.replicas,
            has_load_coordinator=self.gateway.load_coordinator,
            kv_lease_s=self.engine.kv_lease_s,
        )


def validated(document: Mapping[str, Any]) -> AppConfig:
    """The configuration that a document is.

    Raises:
        ConfigError: Field, value and what is allowed.
    """
    try:
        return AppConfig.model_validate(document)
    except ValidationError as error:
        raise refusal(error) from error


if __name__ == "__main__":
    raise SystemExit(main())

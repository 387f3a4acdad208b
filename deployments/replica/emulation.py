"""From configuration to an emulated engine's settings, checked before anything starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from cluster.config.strict import Strict, refusal
from cluster.kv_links import slowdowns_of
from deployments.config import AppConfig, EmulationConfig, EngineConfig, PoolConfig
from engines.emulated.settings import EmulatedSettings
from engines.model.batching import BatchLimits
from engines.model.profile import EngineProfile
from policies.errors import ConfigError


class EmulatedArgs(Strict):
    """What ``engine.args`` and a pool's ``engine_args`` may hold for an emulated engine. Names are vLLM's.

    Args:
        max_num_seqs: Sequences in a step; the pool's own unless given.
        max_num_batched_tokens: Tokens in a step; the profile's own unless given.
        max_model_len: Longest prompt and output together; the profile's own unless given.
        long_prefill_token_threshold: Most prompt tokens of one sequence in a step; 0 means no bound.
        scheduling_policy: First come, first served, or by the request's priority.
        enable_prefix_caching: Whether text that was computed before is found again.
        speculative_config: Speculative decoding: its ``num_speculative_tokens``; the profile says how many are accepted
            and what they cost, and whatever else is there, such as the method, is for the real engine.
        tensor_parallel_size: Of the engine that the profile is of: where its workers go, and no more, is emulated.
        pipeline_parallel_size: Likewise.
        enable_lora: Whether it takes LoRA adapters.
        max_loras: Adapters that a step computes with.
        max_cpu_loras: Adapters that are loaded at a time; ``max_loras`` unless given.
        max_lora_rank: Of the real engine; an emulated one takes any.
        slowdown: How many times as long as the profile says a step takes: gateways go by the profile all the same.
        runner: Whether it pools; the pool's role says so.
        convert: Of the real engine.
        pooler_config: Likewise.
    """

    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    enable_prefix_caching: bool = True
    speculative_config: dict[str, Any] | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    enable_lora: bool = False
    max_loras: int = Field(default=1, ge=1)
    max_cpu_loras: int | None = Field(default=None, ge=1)
    max_lora_rank: int = Field(default=16, ge=1)
    slowdown: float = Field(default=1.0, gt=0, le=1000)
    runner: Literal["auto", "generate", "pooling"] = "auto"
    convert: str = "auto"
    pooler_config: dict[str, Any] | None = None

    def limits(self, profile: EngineProfile) -> BatchLimits:
        """Bounds of a step.

        Raises:
            ConfigError: One that the engine can't have.
        """
        return profile.limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            priority_scheduling=self.scheduling_policy == "priority",
            max_adapters=(self.max_cpu_loras or self.max_loras) if self.enable_lora else 0,
            max_adapters_in_step=self.max_loras if self.enable_lora else 0,
        )


def check_engines(args: AppConfig) -> None:
    """Raises ``ConfigError`` for a missing profile or tokenizer, and for engine arguments that nobody would heed."""
    if args.engine.kind == "emulated":
        if not (Path(args.model.resolved_path()) / "tokenizer.json").is_file():
            raise ConfigError("model.path", args.model.path, "a folder with a tokenizer.json, for emulated engines")
        for pool in args.pools:
            with _in_its_place(pool):
                emulated_settings(pool, args.engine, args.model.resolved_path(), "127.0.0.1").info()


@contextmanager
def _in_its_place(pool: PoolConfig) -> Iterator[None]:
    """An engine model names its limits as engines do."""
    try:
        yield
    except ConfigError as error:
        if error.field in EmulatedArgs.model_fields:
            raise ConfigError(f"{pool.place_of(error.field)}.{error.field}", error.value, error.allowed) from error
        if error.field in EmulationConfig.model_fields:
            raise ConfigError(f"engine.emulation.{error.field}", error.value, error.allowed) from error
        raise


def emulated_settings(
    pool: PoolConfig, engine: EngineConfig, model_path: str, host: str, place: tuple[str, ...] = ()
) -> EmulatedSettings:
    """Settings of one engine of a pool.

    Args:
        pool: The pool.
        engine: How engines run.
        model_path: Folder of the checkpoint.
        host: Address at which other engines reach this one.
        place: Where it is, for ``engine.kv_links``.

    Raises:
        ConfigError: A profile that does not exist, or arguments that can't be emulated.
    """
    emulation, args = _emulation(engine), _args(pool, engine)
    profile = emulation.load_profile().with_link(emulation.kv_bandwidth_bytes_per_s)
    return EmulatedSettings(
        model=model_path,
        role=pool.stage,
        changes_roles=pool.changes_roles,
        pools_prompts=args.runner == "pooling",
        profile=profile,
        limits=args.limits(profile),
        num_speculative_tokens=pool.num_speculative_tokens(engine),
        slowdown=args.slowdown,
        context_tokens=args.max_model_len,
        prefix_caching=args.enable_prefix_caching,
        kv_capacity_tokens=emulation.kv_capacity_tokens,
        kv_lease_s=engine.kv_lease_s,
        kv_events=engine.kv_events,
        speed=emulation.speed,
        mean_output_tokens=emulation.mean_output_tokens,
        start_s=emulation.start_s,
        seed=emulation.seed,
        host=host,
        place=place,
        link_slowdowns=slowdowns_of(engine.links, profile.kv.bandwidth_bytes_per_s),
    )


def _emulation(engine: EngineConfig) -> EmulationConfig:
    if engine.emulation is None:
        raise ConfigError("engine.emulation", None, "a profile")
    return engine.emulation


def _args(pool: PoolConfig, engine: EngineConfig) -> EmulatedArgs:
    try:
        return EmulatedArgs.model_validate(pool.args_over(engine))
    except ValidationError as error:
        found = refusal(error)
        is_own = found.field.partition(".")[0] in pool.engine_args
        place = f"pools.{pool.name}.engine_args" if is_own else "engine.args"
        raise ConfigError(f"{place}.{found.field}", found.value, found.allowed) from error

"""What Ray sets aside for a replica, and where: one actor, or a placement group with a bundle for each worker."""

from collections.abc import Mapping
from typing import Any

import ray
from ray._common import ray_option_utils

from deployments.config import RANKS, EngineConfig, PoolConfig
from policies.errors import ConfigError

SOME_OF_A_NODE = 0.001
"""Of Ray's resource for a type of GPU, which says where and not how many."""


def where(place: str, resources: dict[str, float], label_selector: dict[str, str], **amounts: float) -> dict[str, Any]:
    """Ray's terms for what the node of an actor must have.

    Args:
        place: Where the configuration says it.
        resources: Custom resources.
        label_selector: Labels.
        amounts: ``num_cpus`` and ``num_gpus``.

    Raises:
        ConfigError: Ray does not take one of them.
    """
    options: dict[str, Any] = {**amounts, "resources": resources}
    options = {**options, "label_selector": label_selector} if label_selector else options
    _check_options(place, options)
    return options


def placement_of(pool: PoolConfig, engine: EngineConfig) -> dict[str, Any]:
    """A pool's options of ``serve.deployment`` that say where its replicas are.

    Args:
        pool: Which.
        engine: What its engines are started with.

    Raises:
        ConfigError: GPUs that its engines' workers can't share out, or what Ray does not take.
    """
    num_workers = pool.num_workers(engine)
    _check_gpus(pool, engine, num_workers)
    if pool.placement_group_strategy is not None and pool.num_ranks(engine) > 1:
        allowed = "1 with placement_group_strategy: workers of several ranks are on one node here"
        raise ConfigError(f"pools.{pool.name}.engine_args.{RANKS}", pool.num_ranks(engine), allowed)
    actor = where(
        f"pools.{pool.name}", pool.resources, pool.label_selector, num_cpus=pool.num_cpus, num_gpus=pool.num_gpus
    )
    if pool.accelerator_type:
        actor["accelerator_type"] = pool.accelerator_type
    if pool.placement_group_strategy is None:
        return {"ray_actor_options": actor}
    bundle = _bundle(pool, num_workers)
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": bundle["CPU"], "num_gpus": 0},  # its workers take the GPUs
        "placement_group_bundles": [bundle] * num_workers,
        "placement_group_strategy": pool.placement_group_strategy,
    }
    if pool.label_selector:
        options["placement_group_bundle_label_selector"] = [pool.label_selector] * num_workers
    return options


def _check_options(place: str, options: Mapping[str, Any]) -> None:
    """Whether an actor can have these options; else it is found out when Serve builds, and said in a log."""
    for name, value in options.items():
        try:
            ray_option_utils.validate_actor_options({name: value}, in_options=True)
        except (TypeError, ValueError, OverflowError) as error:
            allowed = f"what Ray takes ({' '.join(str(error).split()).rstrip('.')})"
            raise ConfigError(f"{place}.{name}", value, allowed) from error


def node_labels() -> dict[str, str]:
    """Labels of the node that this process is on, as Ray knows them, and ``node``: its id."""
    own = ray.get_runtime_context().get_node_id()
    labels: dict[str, str] = next((each["Labels"] for each in ray.nodes() if each["NodeID"] == own), {})
    return {**labels, "node": own}


def _check_gpus(pool: PoolConfig, engine: EngineConfig, num_workers: int) -> None:
    """Raises ``ConfigError`` where vLLM would wait for GPUs that Ray does not set aside, or leave some of them idle."""
    whole = f"{num_workers}: tensor_parallel_size x pipeline_parallel_size x data_parallel_size, a GPU for each worker"
    if num_workers > 1 and pool.num_gpus not in (0, num_workers):
        raise ConfigError(f"pools.{pool.name}.num_gpus", pool.num_gpus, f"0 without GPUs, or {whole}")
    if num_workers == 1 and pool.num_gpus > 1 and engine.kind == "vllm":
        raise ConfigError(f"pools.{pool.name}.num_gpus", pool.num_gpus, f"0 to 1, as its workers are {whole}")


def _bundle(pool: PoolConfig, num_workers: int) -> dict[str, float]:
    """One worker's part, and the node that it needs."""
    bundle = {"CPU": pool.num_cpus / num_workers, **pool.resources}
    if pool.num_gpus:
        bundle["GPU"] = pool.num_gpus / num_workers
    if pool.accelerator_type:
        bundle[f"accelerator_type:{pool.accelerator_type}"] = SOME_OF_A_NODE
    return bundle

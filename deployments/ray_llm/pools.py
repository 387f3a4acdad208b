"""A pool of replicas from what an ``LLMConfig`` of Ray Serve LLM says of engines, their place and their number."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.config import PARALLEL_SIZES, RANKS, SCHEMES, STEP_LIMITS, PoolRole, scheme_of
from deployments.ray_llm.taken_fields import TakenFields
from engines.vllm.connectors import HANDOFF
from policies.errors import ConfigError
from policies.views import Role

MAX_NUM_SEQS = 256
"""vLLM's own, where ``engine_kwargs`` do not say."""
MAX_REPLICAS = 100
"""Of ``num_replicas: auto``, as Serve has it."""
FRONT_END_KWARGS = ("tool_call_parser", "enable_auto_tool_choice", "reasoning_parser", "chat_template")
"""What of ``engine_kwargs`` is for vLLM's OpenAI layer."""
ACTOR_CPUS, EMULATED_CPUS = 1.0, 0.1
"""Of a replica's own process: what Ray has for any, and what one with an emulated engine takes."""
WHOLE = {*STEP_LIMITS, *PARALLEL_SIZES}
"""What of ``engine_kwargs`` is reckoned with here."""
AUTO = "auto"
GENERATES = {"task": (AUTO, "generate"), "runner": (AUTO, "generate"), "convert": (AUTO, "none")}
POOLS = {
    "task": ("embed", "embedding", "classify", "score"),
    "runner": (PoolRole.POOLING.value,),
    "convert": ("embed", "classify"),
}
"""What ``engine_kwargs`` may say of the model's task, and what makes it one that pools."""
OF_SERVES_SCALING = (
    "metrics_interval_s",
    "look_back_period_s",
    "smoothing_factor",
    "upscale_smoothing_factor",
    "downscale_smoothing_factor",
    "upscaling_factor",
    "downscaling_factor",
    "upscale_delay_s",
    "downscale_to_zero_delay_s",
    "aggregation_function",
)
"""Of ``autoscaling_config``: how Serve's own policy of scaling goes about it."""
POLICIES_OF_ROUTERS: Mapping[str, Mapping[str, Any]] = {
    "PowerOfTwoChoicesRequestRouter": {"balancing": "power_of_two"},
    "RoundRobinRouter": {"balancing": "round_robin"},
    "ConsistentHashRouter": {"balancing": "session_affinity"},
    "PrefixCacheAffinityRouter": {"balancing": "prefix_affinity", "prefixes": "block_hash"},
    "KVAwareRouter": {"balancing": "lmetric", "prefixes": "block_hash"},
}
"""The policies that come nearest to Ray's request routers, by the names of their classes."""
OWN_ROUTER = "PolicyRouter"
"""The one of ``deployments.serve_router``, which has a balancer of this project's anyway."""


@dataclass(slots=True, kw_only=True)
class TranslatedPool:
    """What an ``LLMConfig`` says beside its model.

    Args:
        pool: As ``pools`` has it.
        engine: What is laid over ``engine``.
        front_end: Of ``vllm_front_end``.
        policies: What is laid over ``policies``.
        scaling: Parameters of ``queue_depth``, where the pool may have several sizes; ``None`` elsewhere.
        adapter_store: Of the model; ``None`` where it has none.
    """

    pool: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)
    front_end: dict[str, Any] = field(default_factory=dict)
    policies: Mapping[str, Any] = field(default_factory=dict)
    scaling: dict[str, Any] | None = None
    adapter_store: str | None = None


def pool_of(fields: TakenFields, name: str, role: Role, emulated_args: Collection[str] | None) -> TranslatedPool:
    """Takes from an ``LLMConfig`` what is the pool's.

    Args:
        fields: The fields of the ``LLMConfig``.
        name: The pool's, unless it has one.
        role: What its replicas do, unless they pool.
        emulated_args: Engine arguments that emulated engines heed; ``None`` where engines are vLLM's.

    Raises:
        ConfigError: A field that can't be served.
    """
    deployment, kwargs = fields.take_inner("deployment_config"), fields.take_inner("engine_kwargs")
    transfer = kwargs.take_inner("kv_transfer_config")
    front_end = kwargs.take_those_there(*FRONT_END_KWARGS)
    on_gpu = _is_on_gpu(fields) and emulated_args is None
    own_cpus = ACTOR_CPUS if emulated_args is None else EMULATED_CPUS
    own_role, of_task = _task(kwargs, role)
    store, lora_args = _adapters(fields.take_inner("lora_config"))
    args = of_task | lora_args | _engine_args(kwargs, emulated_args)
    size, scaling = _size(deployment)
    pool: dict[str, Any] = {
        "name": _as_name(deployment.take("name", name, str)),
        "role": own_role,
        **size,
        **_num_seqs(deployment, args),
        **_place(fields, deployment.take_inner("ray_actor_options"), args, on_gpu=on_gpu, own_cpus=own_cpus),
        **deployment.take_those_there("health_check_period_s", "graceful_shutdown_timeout_s"),
    }
    own = {"engine_args": args, "env": _environment(fields.take_inner("runtime_env"))}
    pool |= {name: value for name, value in own.items() if value}
    policies = _policies_of_router(deployment)
    _leave_rest(deployment)
    engine = _engine(fields, transfer, role, on_gpu=on_gpu)
    engine = engine if emulated_args is None else {}  # an emulated one has none of these
    return TranslatedPool(
        pool=pool, engine=engine, front_end=front_end, policies=policies, scaling=scaling, adapter_store=store
    )


def _task(kwargs: TakenFields, role: Role) -> tuple[str, dict[str, Any]]:
    """The pool's role, which is ``pooling`` where the engine is to make vectors, and what the engine is told of it."""
    said = {name: kwargs.take(name, AUTO) for name in GENERATES}
    pools = role is Role.UNIFIED and any(value in POOLS[name] for name, value in said.items())
    for name, value in said.items():
        allowed = (AUTO, "none", *POOLS[name]) if pools else GENERATES[name]
        if value not in allowed:
            what = "models that embed or score" if pools else "models that generate text"
            raise ConfigError(kwargs.place_of(name), value, f"{' or '.join(allowed)}: {what}")
    convert = said["convert"]
    return (
        (PoolRole.POOLING.value, {"convert": convert} if convert in POOLS["convert"] else {})
        if pools
        else (str(role), {})
    )


def _as_name(given: str) -> str:
    """A deployment's name that resembles it."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", given).strip("-")
    return name if name[:1].isalpha() else f"model-{name}"


def _environment(runtime: TakenFields) -> dict[str, str]:
    variables = runtime.take("env_vars", {}, dict)
    runtime.close("env_vars alone: what engines import is installed on their nodes")
    return {name: str(value) for name, value in variables.items()}


def _leave_rest(deployment: TakenFields) -> None:
    """Serve's other options."""
    tuning = ("health_check_timeout_s", "graceful_shutdown_wait_loop_s", "logging_config")
    deployment.leave_out(*tuning, why="replicas have their own")
    deployment.refuse("max_queued_requests", allowed="nothing: policies.admission says how much may wait")
    deployment.close()


# -- engines ----------------------------------------------------------------------------------------------------------


def _engine_args(kwargs: TakenFields, emulated_args: Collection[str] | None) -> dict[str, Any]:
    """Arguments of the pool's engines."""
    kwargs.refuse("model", "served_model_name", "tokenizer", allowed="nothing: model_loading_config has them")
    kwargs.leave_out("distributed_executor_backend", why="the place of the workers says it")
    args = kwargs.take_rest()
    for name in args.keys() & WHOLE:
        if type(args[name]) is not int or args[name] < 1:
            raise ConfigError(kwargs.place_of(name), args[name], "a whole number, at least 1")
    if emulated_args is None:
        return args
    for name in sorted(args.keys() - set(emulated_args)):
        kwargs.note(name, "an emulated engine has no such thing")
    return {name: value for name, value in args.items() if name in emulated_args}


def _adapters(lora: TakenFields) -> tuple[str | None, dict[str, Any]]:
    """Where LoRA adapters are, and room for them."""
    store = lora.take("dynamic_lora_loading_path", kind=str)
    if store is not None and scheme_of(store) not in SCHEMES:
        raise ConfigError(lora.place_of("dynamic_lora_loading_path"), store, f"a bucket by {', '.join(SCHEMES)}")
    number = lora.take("max_num_adapters_per_replica", kind=int)
    lora.leave_out("download_timeout_s", "max_download_tries", why="a request has its own deadline and tries")
    lora.close()
    return store, {} if number is None else {"enable_lora": True, "max_cpu_loras": number}


def _engine(fields: TakenFields, transfer: TakenFields, role: Role, *, on_gpu: bool) -> dict[str, Any]:
    """What is laid over ``engine``, whose engines are vLLM's."""
    engine: dict[str, Any] = {
        "log_engine_metrics": fields.take("log_engine_metrics", True),
        "kv_buffer_device": transfer.take("kv_buffer_device", "cuda" if on_gpu else "cpu"),
    }
    if connectors := _connectors(transfer):
        names = [each["name"] for each in connectors]
        if HANDOFF not in names and role is not Role.UNIFIED:
            raise ConfigError(transfer.place_of("kv_connector"), names, f"{HANDOFF}, or MultiConnector with it")
        own = [] if HANDOFF in names else [{"name": HANDOFF}]
        engine["kv_connectors"] = [*own, *connectors]
    return engine


def _connectors(transfer: TakenFields) -> list[dict[str, Any]]:
    """Those of a ``kv_transfer_config``, whose other fields follow from the pool's role."""
    name = transfer.take("kv_connector")
    transfer.take_those_there("kv_role", "engine_id")
    extra = {**transfer.take("kv_connector_extra_config", {}, dict), **transfer.take_those_there("backends")}
    transfer.close()
    if name != "MultiConnector":
        return [] if name is None else [{"name": name, "extra_config": extra}]
    parts = extra.get("connectors", [])
    place = transfer.place_of("kv_connector_extra_config.connectors")
    inner = (transfer.at(f"{place}.{number}", part) for number, part in enumerate(parts))
    return [each for part in inner for each in _connectors(part)]


# -- places -----------------------------------------------------------------------------------------------------------


def _is_on_gpu(fields: TakenFields) -> bool:
    """Whether engines have GPUs; ``LLMConfig`` has found it out where nobody says."""
    accelerator = fields.take("accelerator_config")
    kind = getattr(accelerator, "kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise ConfigError(fields.place_of("accelerator_config.kind"), kind, "gpu or cpu")
    return bool(kind == "gpu")


def _place(
    fields: TakenFields, actor: TakenFields, args: Mapping[str, Any], *, on_gpu: bool, own_cpus: float
) -> dict[str, Any]:
    """What Ray sets aside for a replica: what its own process has, and a bundle for each worker of its engine."""
    num_workers = math.prod(args.get(size, 1) for size in PARALLEL_SIZES)
    bundle, strategy = _bundle(fields.take_inner("placement_group_config"), num_workers, {"GPU": float(on_gpu)})
    actor.refuse("num_gpus", allowed="nothing: each worker of the engine has one, or what placement_group_config says")
    num_cpus = actor.take("num_cpus", own_cpus, float) + num_workers * bundle.pop("CPU", 0.0)
    num_gpus = num_workers * bundle.pop("GPU", 0.0) * on_gpu
    accelerator = actor.take("accelerator_type", fields.take("accelerator_type"))
    place = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "accelerator_type": accelerator if on_gpu else None,
        "resources": {**actor.take("resources", {}, dict), **bundle},
        "label_selector": actor.take("label_selector"),
        "placement_group_strategy": strategy if num_workers > 1 and args.get(RANKS, 1) == 1 else None,
    }
    actor.close()
    return {name: value for name, value in place.items() if value}


def _bundle(group: TakenFields, num_workers: int, default: Mapping[str, float]) -> tuple[dict[str, float], str]:
    """What one worker has, and how workers are placed."""
    each, bundles = group.take("bundle_per_worker", kind=dict), group.take("bundles", kind=list)
    strategy: str = group.take("strategy", "PACK")
    group.close()
    given = [each] * num_workers if each else bundles or [default] * num_workers
    if len(given) != num_workers or any(other != given[0] for other in given):
        allowed = f"{num_workers} that are the same, one for each worker of the engine"
        raise ConfigError(group.place_of("bundles"), bundles, allowed)
    return dict(given[0]), strategy


# -- sizes ------------------------------------------------------------------------------------------------------------


def _size(deployment: TakenFields) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """How many replicas, and parameters of ``queue_depth`` where that changes."""
    number = deployment.take("num_replicas")
    scaled = deployment.take_inner("autoscaling_config")
    least = scaled.take("min_replicas", 1, int)
    most = scaled.take("max_replicas", MAX_REPLICAS if number == AUTO else max(least, 1), int)
    first = scaled.take("initial_replicas", max(least, 1), int)
    params = {
        "target_requests": scaled.take("target_ongoing_requests", kind=float),
        "down_after_s": scaled.take("downscale_delay_s", kind=float),
    }
    scaled.refuse("policy", allowed="nothing: policies.scaling, in spillway.policies, is a policy of this project's")
    scaled.leave_out(*OF_SERVES_SCALING, why="policies.scaling has parameters of its own")
    scaled.close()
    if type(number) is int or least == most:
        return {"replicas": number if type(number) is int else most}, None
    size = {"replicas": first, "autoscaling": {"min_replicas": least, "max_replicas": most}}
    return size, {name: float(value) for name, value in params.items() if value is not None}


def _num_seqs(deployment: TakenFields, args: dict[str, Any]) -> dict[str, Any]:
    """Requests in an engine: what waits beyond that waits at the gateway."""
    num_seqs = args.pop("max_num_seqs", MAX_NUM_SEQS)
    most = deployment.take("max_ongoing_requests", math.inf, float)
    return {"max_num_seqs": most, "waiting_fraction": 0.0} if most < num_seqs else {"max_num_seqs": num_seqs}


def _policies_of_router(deployment: TakenFields) -> Mapping[str, Any]:
    """Those that come nearest to the request router."""
    router = deployment.take_inner("request_router_config")
    given = router.take("request_router_class")
    if given is None:
        return {}
    name = re.split(r"[.:]", given)[-1] if isinstance(given, str) else given.__name__
    if name == OWN_ROUTER:
        return _policies_of_own(router.take_inner("request_router_kwargs"))
    if name not in POLICIES_OF_ROUTERS:
        raise ConfigError(router.place_of("request_router_class"), name, f"one of {', '.join(POLICIES_OF_ROUTERS)}")
    why = f"{POLICIES_OF_ROUTERS[name]['balancing']} has parameters of its own"
    for each in router.take_rest():
        router.note(each, why)
    return POLICIES_OF_ROUTERS[name]


def _policies_of_own(kwargs: TakenFields) -> Mapping[str, Any]:
    balancing, params = kwargs.take("balancing", kind=str), kwargs.take("params", {}, dict)
    kwargs.leave_out("work_from", why="requests are measured in tokens")
    kwargs.close()
    return {"balancing": {"name": balancing, "params": params}, "prefixes": "block_hash"}

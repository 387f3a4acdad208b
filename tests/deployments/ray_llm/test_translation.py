"""Ray Serve LLM's configurations in this project's words: what is translated, what is left out, what is refused."""

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.app import check_models
from deployments.config import ROOT, AppConfig, PoolRole
from deployments.configuration.models import models_in
from deployments.launch import load
from deployments.llm import main, translated
from policies.errors import ConfigError
from tests.tables import for_each

EMULATED = {"kind": "emulated", "emulation": {"profile": "h100-llama3-8b"}}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


def config(**more: Any) -> dict[str, Any]:
    loading = {"model_id": "qwen-0.5b", "model_source": "Qwen/Qwen2.5-0.5B-Instruct"}
    return {"model_loading_config": loading, "accelerator_type": "A10G", **more}


def document(builder: str = "build_openai_app", **args: Any) -> dict[str, Any]:
    application = {"name": "llm_app", "route_prefix": "/", "import_path": f"ray.serve.llm:{builder}", "args": args}
    return {"applications": [application]}


def two(prefill: dict[str, Any], decode: dict[str, Any], **more: Any) -> dict[str, Any]:
    return document("build_pd_openai_app", prefill_config=prefill, decode_config=decode, **more)


def served(given: dict[str, Any]) -> tuple[AppConfig, ...]:
    """What a configuration comes to, checked like any."""
    before = copy.deepcopy(given)
    (application,) = translated(given)[0]["applications"]
    assert given == before
    assert application["import_path"] == "deployments.app:build"
    models = models_in(application["args"])
    check_models(models)
    return models


def one(**more: Any) -> AppConfig:
    (model,) = served(document(llm_configs=[config(**more)]))
    return model


def notes_of(given: dict[str, Any]) -> str:
    return "\n".join(translated(given)[1])


def test_a_model_is_a_pool_of_gpus_that_vllm_gives_all_of_its_api() -> None:
    model = one()
    (pool,) = model.pools
    assert (model.model.id, model.model.path) == ("qwen-0.5b", "Qwen/Qwen2.5-0.5B-Instruct")
    assert (pool.name, pool.role, pool.replicas, pool.autoscaling) == ("qwen-0-5b", PoolRole.UNIFIED, 1, None)
    assert (pool.num_gpus, pool.accelerator_type, pool.max_num_seqs) == (1, "A10G", 256)
    assert model.gateway.vllm_front_end is not None
    assert model.engine.log_engine_metrics


@for_each(
    ("said", "told"),
    [
        ({"task": "embed"}, {}),
        ({"runner": "pooling"}, {}),
        ({"runner": "pooling", "convert": "classify"}, {"convert": "classify"}),
        ({"task": "score", "max_model_len": 512}, {"max_model_len": 512}),
    ],
)
def test_a_model_that_embeds_or_scores_has_a_pool_that_pools(said: dict[str, Any], told: dict[str, Any]) -> None:
    model = one(engine_kwargs=said)
    (pool,) = model.pools
    assert (pool.role, pool.engine_args) == ("pooling", told)
    assert pool.args_over(model.engine)["runner"] == "pooling"
    assert model.pools_prompts


def test_adapters_of_a_bucket_are_the_models() -> None:
    lora = {"dynamic_lora_loading_path": "s3://bucket/loras/", "max_num_adapters_per_replica": 16}
    model = one(lora_config={**lora, "download_timeout_s": 30})
    assert model.model.adapter_store == "s3://bucket/loras"
    assert model.pools[0].args_over(model.engine) == {"max_num_seqs": 256, "enable_lora": True, "max_cpu_loras": 16}


def test_two_models_have_a_pool_each() -> None:
    other = config(model_loading_config={"model_id": "qwen-1.5b"}, log_engine_metrics=False)
    small, large = served(document(llm_configs=[config(), other]))
    assert [pool.name for each in (small, large) for pool in each.pools] == ["qwen-0-5b", "qwen-1-5b"]
    assert large.model.path == "qwen-1.5b"
    assert (small.engine.log_engine_metrics, large.engine.log_engine_metrics) == (True, False)


def test_prefill_and_decode_are_two_pools_of_one_model() -> None:
    sizes = [{"autoscaling_config": {"min_replicas": 2, "max_replicas": 4}}, {"num_replicas": 6}]
    sides = [
        config(engine_kwargs={"kv_transfer_config": {**NIXL, "engine_id": "e"}}, deployment_config=each)
        for each in sizes
    ]
    (model,) = served(two(*sides))
    assert [(pool.name, pool.role, pool.replicas) for pool in model.pools] == [
        ("qwen-0-5b-prefill", PoolRole.PREFILL, 2),
        ("qwen-0-5b-decode", PoolRole.DECODE, 6),
    ]
    assert (model.policies.planning.name, model.engine.kv_buffer_device) == ("always_disaggregated", "cuda")
    assert [each.name for each in model.engine.kv_connectors] == ["NixlConnector"]


def test_several_kv_connectors_are_those_of_the_multi_connector() -> None:
    parts = [{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, {**NIXL, "backends": ["UCX"]}]
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": parts}}
    side = config(engine_kwargs={"kv_transfer_config": multi})
    (model,) = served(two(side, side))
    found = {each.name: each.extra_config for each in model.engine.kv_connectors}
    assert found == {"LMCacheConnectorV1": {}, "NixlConnector": {"backends": ["UCX"]}}


def test_a_connector_that_keeps_kv_of_whole_requests_is_kept() -> None:
    model = one(engine_kwargs={"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}})
    assert [each.name for each in model.engine.kv_connectors] == ["NixlConnector", "LMCacheConnectorV1"]


@for_each(
    ("given", "expected"),
    [
        ({"engine_kwargs": {"tensor_parallel_size": 2}}, (2, 1, "PACK")),
        ({"engine_kwargs": {"data_parallel_size": 2}}, (2, 1, None)),
        (
            {
                "engine_kwargs": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
                "placement_group_config": {"bundle_per_worker": {"CPU": 1, "GPU": 1}, "strategy": "SPREAD"},
            },
            (4, 5, "SPREAD"),
        ),
        ({"placement_group_config": {"bundles": [{"GPU": 0.49}]}}, (0.49, 1, None)),
        ({"accelerator_type": None, "accelerator_config": {"kind": "cpu"}}, (0, 1, None)),
        ({"deployment_config": {"ray_actor_options": {"num_cpus": 4}}}, (1, 4, None)),
    ],
)
def test_workers_have_what_they_would_have_had(
    given: dict[str, Any], expected: tuple[float, float, str | None]
) -> None:
    (pool,) = one(**given).pools
    assert (pool.num_gpus, pool.num_cpus, pool.placement_group_strategy) == expected


@for_each(
    ("given", "most", "waiting"),
    [({}, 256, 0.25), ({"max_ongoing_requests": 64}, 64, 0.0), ({"max_ongoing_requests": 1000}, 256, 0.25)],
)
def test_an_engine_has_no_more_requests_than_it_would_have_had(
    given: dict[str, Any], most: int, waiting: float
) -> None:
    (pool,) = one(deployment_config=given).pools
    assert (pool.max_num_seqs, pool.waiting_fraction) == (most, waiting)


@for_each(
    ("router", "balancing"),
    [
        ("ray.serve.llm.request_router.PrefixCacheAffinityRouter", "prefix_affinity"),
        ("ray.serve.llm.request_router:KVAwareRouter", "lmetric"),
        ("ray.serve.experimental.consistent_hash_router:ConsistentHashRouter", "session_affinity"),
    ],
)
def test_a_request_router_is_the_balancer_that_comes_nearest(router: str, balancing: str) -> None:
    model = one(deployment_config={"request_router_config": {"request_router_class": router}})
    assert model.policies.balancing.name == balancing


def test_a_balancer_of_ours_behind_rays_replicas_is_the_balancer() -> None:
    kwargs = {"balancing": "peak_ewma", "params": {"decay_s": 5}}
    router = {"request_router_class": "deployments.serve_router.PolicyRouter", "request_router_kwargs": kwargs}
    model = one(deployment_config={"request_router_config": router})
    assert (model.policies.balancing.name, model.policies.balancing.params) == ("peak_ewma", {"decay_s": 5})


def test_parsers_of_tools_and_reasoning_are_the_models() -> None:
    kwargs = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3", "seed": 1}
    model = one(engine_kwargs=kwargs)
    front_end = model.gateway.vllm_front_end
    assert front_end is not None
    assert (front_end.tool_call_parser, front_end.reasoning_parser) == ("hermes", "qwen3")
    assert model.engine.args == {"reasoning_parser": "qwen3"}
    assert model.pools[0].engine_args == {"seed": 1}


def test_in_a_file_pools_are_scaled_by_what_waits_and_serve_is_told_that_it_may_be_told() -> None:
    given = document(
        llm_configs=[
            config(deployment_config={"autoscaling_config": {"max_replicas": 4, "target_ongoing_requests": 8}})
        ]
    )
    (application,) = translated(given)[0]["applications"]
    assert application["external_scaler_enabled"] is True
    (model,) = served(given)
    assert (model.policies.scaling.name, model.policies.scaling.params) == ("queue_depth", {"target_requests": 8.0})
    assert not translated(document(llm_configs=[config()]))[0]["applications"][0].get("external_scaler_enabled")


def test_what_changes_nothing_is_left_out_and_said() -> None:
    deployment = {"health_check_timeout_s": 5, "autoscaling_config": {"max_replicas": 2, "upscale_delay_s": 3}}
    said = notes_of(document(llm_configs=[config(deployment_config=deployment)]))
    assert "llm_configs.0.deployment_config.health_check_timeout_s is left out: replicas have their own" in said
    assert "upscale_delay_s is left out" in said


def test_on_emulated_engines_a_configuration_runs_without_its_gpus() -> None:
    own = {"engine": EMULATED, "models": {"qwen-0.5b": {"path": ".models/tiny-llama", "aliases": ["default"]}}}
    given = document(
        llm_configs=[
            config(engine_kwargs={"tensor_parallel_size": 2, "gpu_memory_utilization": 0.9, "max_model_len": 4096})
        ],
        spillway=own | {"policies": {"slos": {"ttft_s": 1.0}}, "gateway": {"replicas": 2}},
    )
    (model,) = served(given)
    assert (model.pools[0].num_gpus, model.pools[0].num_cpus, model.pools[0].accelerator_type) == (0, 0.1, None)
    assert model.pools[0].engine_args == {"tensor_parallel_size": 2, "max_model_len": 4096}
    assert (model.model.names, model.gateway.replicas) == (("qwen-0.5b", "default"), 2)
    assert model.gateway.vllm_front_end is not None
    assert "gpu_memory_utilization is left out: an emulated engine has no such thing" in notes_of(given)


def test_one_of_two_models_may_have_emulated_engines() -> None:
    own = {"qwen-0.5b": {"path": ".models/tiny-llama", "engine": EMULATED}}
    other = config(model_loading_config={"model_id": "qwen-1.5b"})
    small, large = served(document(llm_configs=[config(), other], spillway={"models": own}))
    assert (small.engine.kind, small.pools[0].num_gpus) == ("emulated", 0)
    assert (large.engine.kind, large.pools[0].num_gpus) == ("vllm", 1)


def test_the_ingress_is_the_gateways() -> None:
    ingress = {"num_replicas": 3, "ray_actor_options": {"num_cpus": 2}, "max_ongoing_requests": 100}
    (model,) = served(document(llm_configs=[config()], ingress_deployment_config=ingress))
    assert (model.gateway.replicas, model.gateway.num_cpus) == (3, 2)
    experimental = {"stream_batching_interval_ms": 50, "num_ingress_replicas": 2}
    model = one(experimental_configs=experimental)
    assert (model.gateway.flush_interval_s, model.gateway.replicas) == (0.05, 2)


@for_each(
    ("given", "field"),
    [
        ({"lora_config": {"dynamic_lora_loading_path": "azure://a@b/loras"}}, "lora_config.dynamic_lora_loading_path"),
        ({"engine_kwargs": {"task": "transcription"}}, "engine_kwargs.task"),
        ({"engine_kwargs": {"task": "embed", "runner": "generate"}}, "engine_kwargs.runner"),
        ({"engine_kwargs": {"model": "other"}}, "engine_kwargs.model"),
        ({"runtime_env": {"pip": ["torch"]}}, "runtime_env.pip"),
        ({"server_cls": "ray.serve.llm.deployment.LLMServer"}, "server_cls"),
        ({"accelerator_type": "TPU-V6E"}, "accelerator_config.kind"),
        ({"deployment_config": {"max_queued_requests": 5}}, "deployment_config.max_queued_requests"),
        ({"deployment_config": {"user_config": {"a": 1}}}, "deployment_config.user_config"),
        (
            {
                "deployment_config": {
                    "request_router_config": {"request_router_class": "deployments.wire.pinned_router.PinnedRouter"}
                }
            },
            "deployment_config.request_router_config.request_router_class",
        ),
        (
            {"engine_kwargs": {"tensor_parallel_size": 2}, "placement_group_config": {"bundles": [{"GPU": 1}]}},
            "placement_group_config.bundles",
        ),
        (
            {"model_loading_config": {"model_id": "m", "model_source": {"bucket_uri": "s3://b/m"}}},
            "model_loading_config.model_source",
        ),
        ({"model_loading_config": {"model_id": "m", "tokenizer_source": "t"}}, "model_loading_config.tokenizer_source"),
        ({"callback_config": {"callback_class": "my.Callback"}}, "callback_config"),
        ({"experimental_configs": {"new": 1}}, "experimental_configs.new"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        one(**given)
    assert caught.value.field == f"llm_configs.0.{field}"


@for_each(
    ("given", "field"),
    [
        (document(llm_configs=[]), "args"),
        (document(llm_configs=[{"model_id": "flat"}]), "llm_configs"),
        (document(llm_configs=[config()], spillway={"models": {"other": {}}}), "spillway.models.other"),
        (document(llm_configs=[config()], spillway={"gateway": 3}), "spillway.gateway"),
        (
            document(llm_configs=[config()], spillway={"models": {"qwen-0.5b": {"policies": 3}}}),
            "spillway.models.qwen-0.5b.policies",
        ),
        (document(llm_configs=[config()], spillway={"models": {"qwen-0.5b": 3}}), "spillway.models.qwen-0.5b"),
        (document(llm_configs=[config()], spillway={"models": {"qwen-0.5b": {"gateway": {}}}}), "models.0.gateway"),
        (document(llm_configs=[config()], surprise=1), "surprise"),
        (two(config(), config()), "args"),
        (
            two(
                config(engine_kwargs={"kv_transfer_config": NIXL}),
                config(engine_kwargs={"kv_transfer_config": NIXL}, log_engine_metrics=False),
            ),
            "decode_config: what engines share: log_engine_metrics",
        ),
        (
            two(*[config(engine_kwargs={"kv_transfer_config": {**NIXL, "kv_connector": "LMCacheConnectorV1"}})] * 2),
            "prefill_config.engine_kwargs.kv_transfer_config.kv_connector",
        ),
        (
            document(
                llm_configs=[
                    config(),
                    config(model_loading_config={"model_id": "b"}, experimental_configs={"num_ingress_replicas": 2}),
                ],
                ingress_deployment_config={"num_replicas": 3},
            ),
            "ingress_deployment_config: gateway.replicas",
        ),
    ],
)
def test_what_is_wrong_with_an_application_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        served(given)
    assert caught.value.field.startswith(field)


def test_a_model_that_is_named_in_another_file_is_read_from_there(tmp_path: Path) -> None:
    file = tmp_path / "qwen.yaml"
    file.write_text(yaml.safe_dump(config()))
    assert served(document(llm_configs=[str(file)])) == (one(),)


def test_the_command_line_prints_what_the_launcher_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = ROOT / "deployments" / "configs" / "ray-llm.yaml"
    assert main([str(shipped)]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert load(printed) == load(shipped)


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(document(llm_configs=[config(server_cls="ray.serve.llm.deployment.LLMServer")])))
    assert main([str(wrong)]) == 1
    assert "llm_configs.0.server_cls: got" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere.yaml")]) == 1


def test_an_application_of_another_kind_is_left_as_it_is() -> None:
    other = {"applications": [{"name": "a", "import_path": "ray.serve.llm:something", "args": {"b": 1}}]}
    assert translated(other) == (other, [])


ODD: tuple[Any, ...] = (None, 0, -1, 1.5, True, "", "x", [], [1], {}, {"a": 1})
FIELDS = (
    "engine_kwargs",
    "engine_kwargs.tensor_parallel_size",
    "engine_kwargs.max_num_seqs",
    "engine_kwargs.kv_transfer_config",
    "engine_kwargs.task",
    "deployment_config.name",
    "deployment_config.num_replicas",
    "deployment_config.autoscaling_config",
    "deployment_config.max_ongoing_requests",
    "deployment_config.ray_actor_options",
    "placement_group_config.bundles",
    "placement_group_config.bundle_per_worker",
    "placement_group_config.strategy",
    "runtime_env.env_vars",
    "experimental_configs.stream_batching_interval_ms",
    "lora_config.max_num_adapters_per_replica",
    "model_loading_config.model_id",
    "model_loading_config.model_source",
    "callback_config",
)


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_is_another_error_than_a_wrong_configuration(field: str) -> None:
    first, _, second = field.partition(".")
    for odd in ODD:
        given = config()
        given[first] = {**given.get(first, {}), second: odd} if second else odd
        with suppress(ConfigError):
            served(document(llm_configs=[given]))

"""Applications of Ray Serve LLM's builders on emulated engines; by their import path, on real ones, they are in
``test_adapters_on_serve.py``.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from openai import OpenAI

from deployments.config import ROOT
from tests.deployments.live_cluster import START_PATIENCE_S, Live, RayNodes, replicas_of
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

TWO, APART = "two-models", "prefill-decode"
SPLIT = "split"
POOLS = {TWO: {"qwen-small": 1, "qwen-large": 1}, APART: {f"{SPLIT}-prefill": 1, f"{SPLIT}-decode": 2}}


def two_models(logs: str) -> dict[str, Any]:
    """``ray-llm.yaml``, for a crowded machine."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "ray-llm.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["spillway"]["gateway"] = {"num_cpus": 0.01, "event_log": logs}
    for each in args["llm_configs"]:
        each["deployment_config"]["ray_actor_options"] = {"num_cpus": 0.01}
    return args


def prefill_decode(logs: str) -> dict[str, Any]:
    """A model whose prompts have replicas of their own."""

    def side(replicas: int) -> dict[str, Any]:
        return {
            "model_loading_config": {"model_id": SPLIT, "model_source": ".models/tiny-llama"},
            "accelerator_type": "H100",
            "engine_kwargs": {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
            "deployment_config": {"num_replicas": replicas, "ray_actor_options": {"num_cpus": 0.01}},
        }

    emulated = {"kind": "emulated", "emulation": {"profile": "h100-llama3-8b"}}
    spillway = {"engine": emulated, "gateway": {"num_cpus": 0.01, "event_log": logs}}
    return {"prefill_config": side(1), "decode_config": side(2), "spillway": spillway}


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[dict[str, Live]]:
    from ray import serve

    from deployments.llm import build_openai_app, build_pd_openai_app

    ensure_tokenizer()
    two, apart = (nodes.logs.folder(name) for name in (TWO, APART))
    built = {TWO: build_openai_app(two_models(two)), APART: build_pd_openai_app(prefill_decode(apart))}
    targets = [
        serve.RunTarget(each, name=name, route_prefix=f"/{name}", external_scaler_enabled=name == TWO)
        for name, each in built.items()
    ]
    serve.run_many(targets, wait_for_applications_running=False)
    found = {name: Live(url=f"{nodes.url}/{name}", nodes=nodes) for name in POOLS}

    def are_ready(name: str) -> bool:
        return replicas_of(found[name].url) == POOLS[name]

    try:
        for each in found:
            wait_until(partial(are_ready, each), f"all replicas of {each} take requests", START_PATIENCE_S)
        yield found
    finally:
        for name in POOLS:
            serve.delete(name, _blocking=False)
    for name in POOLS:
        nodes.logs.check(name)


def client(live: Live) -> OpenAI:
    return OpenAI(base_url=f"{live.url}/v1", api_key="fake-key", timeout=60)


def say(live: Live, model: str, **more: Any) -> Any:
    asked: Any = [{"role": "user", "content": "Hello!"}]
    return client(live).chat.completions.create(model=model, messages=asked, max_tokens=8, **more)


def test_each_model_answers_by_the_name_that_it_had(running: dict[str, Live]) -> None:
    two = running[TWO]
    assert {each.id for each in client(two).models.list()} == {"qwen-small", "qwen-large"}
    for model in ("qwen-small", "qwen-large"):
        assert say(two, model).model == model
    assert len(say(two, "qwen-small", n=2).choices) == 2, "vLLM's layer is there"


def test_a_prompt_is_computed_in_one_pool_and_answered_from_the_other(running: dict[str, Live]) -> None:
    apart = running[APART]
    assert "".join(each.choices[0].delta.content or "" for each in say(apart, SPLIT, stream=True))

    def served_by() -> set[str]:
        return {labels["pool"] for labels, value in apart.samples("spillway_replica_attempts_total") if value}

    wait_until(lambda: served_by() == set(POOLS[APART]), "each pool had a part in it")


def test_what_cannot_be_served_is_said_where_it_is_deployed(running: dict[str, Live]) -> None:
    from deployments.llm import build_openai_app
    from policies.errors import ConfigError

    wrong = two_models("events")
    wrong["llm_configs"][0]["server_cls"] = "ray.serve.llm.deployment.LLMServer"
    with pytest.raises(ConfigError, match=r"llm_configs\.0\.server_cls"):
        build_openai_app(wrong)
    assert HTTP.get(f"{running[TWO].url}/ready", timeout=30).status_code == 200


def test_in_python_it_takes_rays_own_objects(running: dict[str, Live]) -> None:
    from ray.serve.llm import LLMConfig, LLMServingArgs

    from deployments.llm import build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": "m", "model_source": ".models/tiny-llama"}, accelerator_type="H100"
    )
    for args in ({"llm_configs": [config]}, LLMServingArgs(llm_configs=[config])):
        assert build_openai_app(args)._bound_deployment.name == "gateway"

"""Two tiny models and three LoRA adapters on real engines: each name in the API gives its own answers."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import AsyncOpenAI, NotFoundError, OpenAI

from deployments.config import ROOT
from deployments.tenants.keys import new_key
from deployments.wire.serve_internals import deploy_document
from tests.deployments.adapters.stores import bucket_of
from tests.deployments.live_cluster import START_PATIENCE_S, Live, RayNodes, in_ray, replicas_of
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.proof]  # three engines

ADAPTERS = ("greeting", "numbers", "well")
SCRIPTS, LLAMA, FOLDER = ".models/tiny-scripts", ".models/tiny-llama", ".models/tiny-adapters"
GENERATED = "vllm_generation_tokens_total"
QUESTION = "What is a queue?"
NAME = "adapters"
REPLICAS = {"scripts": 2, "llama": 1}
NUM_REQUESTS = 60
BY_AFFINITY = {"name": "scored", "params": {"weights": {"load": 1.0, "adapter": 2.0}}}
"""A load of these adapters takes 4 ms, so that ``least_delay`` often prefers the smaller batch."""


def document(tenants: str, bucket: str, logs: str, user_config: dict[str, Any]) -> dict[str, Any]:
    """As ``serve deploy`` takes it, in the words of Ray Serve LLM."""
    gateway = {"name": "gateway", "user_config": user_config}
    found = {"name": NAME, "route_prefix": f"/{NAME}", "import_path": "deployments.llm:build_openai_app"}
    return {"applications": [{**found, "args": application_args(tenants, bucket, logs), "deployments": [gateway]}]}


def application_args(tenants: str, bucket: str, logs: str) -> dict[str, Any]:
    """Two replicas of the scripted model, each with room for two of three adapters, and one of the other model.

    All three are in a bucket, and two of them are listed by names of their own.
    """
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    where = {"dynamic_lora_loading_path": bucket, "max_num_adapters_per_replica": 2}
    scripts = llm_config("scripts", SCRIPTS, lora) | {"lora_config": where}
    listed = [{"id": name, "path": f"{FOLDER}/{name}"} for name in ADAPTERS[:2]]
    return {
        "llm_configs": [scripts, llm_config("llama", LLAMA, {})],
        "spillway": {
            "models": {"scripts": {"adapters": listed}},
            "engine": {"profile": "vllm-cpu-tiny"},
            "gateway": {"num_cpus": 0.01, "tenants": tenants, "event_log": logs},
            "policies": {"balancing": "least_delay", "prefixes": "block_hash"},
        },
    }


def llm_config(model_id: str, source: str, engine_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What Ray's ``LLMConfig`` is to say of replicas on a crowded machine without GPUs."""
    local = yaml.safe_load((ROOT / "deployments" / "configs" / "local-vllm.yaml").read_text())
    engine = local["applications"][0]["args"]["engine"]
    limits = {"max_model_len": 512, "enforce_eager": True, "max_num_seqs": 8}
    return {
        "model_loading_config": {"model_id": model_id, "model_source": source},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {**engine["args"], **limits, **engine_kwargs},
        "deployment_config": {"num_replicas": REPLICAS[model_id], "ray_actor_options": {"num_cpus": 0.01}},
        "runtime_env": {"env_vars": engine["env"]},
    }


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """One that may load adapters, and the file that says so."""
    secret, hashed = new_key()
    file = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": [{"name": "ops", "keys": [hashed], "may_load_adapters": True}]}))
    return secret, str(file)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """All adapters in one that a local S3 server has."""
    from engines.vllm.scripted_adapters import ensure_scripted_adapters

    ensure_scripted_adapters(ROOT / FOLDER, ROOT / SCRIPTS)
    with bucket_of(ROOT / FOLDER) as uri:
        yield uri


@pytest.fixture(scope="module")
def running(nodes: RayNodes, key: tuple[str, str], bucket: str) -> Iterator[Live]:
    from ray import serve

    live = Live(url=f"{nodes.url}/{NAME}", nodes=nodes)
    deploy_document(document(key[1], bucket, nodes.logs.folder(NAME), {}))
    try:
        wait_until(lambda: replicas_of(live.url) == REPLICAS, "all replicas take requests", START_PATIENCE_S)
        yield live
    finally:
        serve.delete(NAME, _blocking=False)
    nodes.logs.check(NAME)


def client(running: Live, key: tuple[str, str]) -> OpenAI:
    return OpenAI(base_url=f"{running.url}/v1", api_key=key[0], timeout=60, max_retries=2)


def said(http: OpenAI, model: str, **more: Any) -> str | None:
    asked: Any = {"role": "user", "content": QUESTION}
    answer = http.chat.completions.create(model=model, messages=[asked], max_tokens=40, temperature=0, **more)
    assert answer.model == model
    text: str | None = answer.choices[0].message.content
    return text


def load(running: Live, key: tuple[str, str], what: str, **body: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key[0]}"}
    return HTTP.post(f"{running.url}/v1/{what}_lora_adapter", json=body, headers=headers, timeout=60)


def test_each_name_gives_its_own_answer_by_either_layer(running: Live, key: tuple[str, str]) -> None:
    from engines.vllm.scripted_adapters import answer_of

    http = client(running, key)
    for name in ("scripts", *ADAPTERS[:2]):
        assert said(http, name) == answer_of(name)
        assert said(http, name, seed=1, extra_body={"echo": True}) is not None
    assert said(http, "llama") not in {answer_of(name) for name in ("scripts", *ADAPTERS)}
    listed = {each.id: getattr(each, "parent", None) for each in http.models.list()}
    of_bucket = dict.fromkeys((f"scripts:{name}" for name in ADAPTERS), "scripts")
    assert listed == {"scripts": None, "greeting": "scripts", "numbers": "scripts", "llama": None, **of_bucket}


def test_one_of_the_bucket_is_loaded_with_its_first_request(running: Live, key: tuple[str, str]) -> None:
    from engines.vllm.scripted_adapters import answer_of

    http = client(running, key)
    assert said(http, "scripts:well") == answer_of("well")
    for name in ("scripts:deep", "llama:well", "scripts:../well"):
        with pytest.raises(NotFoundError):
            said(http, name)


def test_one_is_loaded_while_it_runs_answered_with_and_unloaded(running: Live, key: tuple[str, str]) -> None:
    from engines.vllm.scripted_adapters import answer_of

    http = client(running, key)
    with pytest.raises(NotFoundError):
        said(http, "well")
    wrong = load(running, key, "load", lora_name="well", lora_path="/nowhere", model="scripts")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "lora_path")
    loaded = load(running, key, "load", lora_name="well", lora_path=f"{FOLDER}/well", model="scripts")
    assert loaded.status_code == 200, loaded.text
    assert said(http, "well") == answer_of("well")
    assert load(running, key, "unload", lora_name="well").status_code == 200
    with pytest.raises(NotFoundError):
        said(http, "well")


def test_rays_agents_have_what_vllm_says_of_each_model(running: Live, key: tuple[str, str]) -> None:
    http = client(running, key)
    for name in ("scripts", "llama"):
        said(http, name)
    wait_until(
        lambda: {labels["model_name"] for labels, value in in_ray(GENERATED) if value > 0} >= {"scripts", "llama"},
        "Ray's agents have vLLM's own count of tokens of each model",
    )


async def all_said(
    running: Live, key: tuple[str, str], names: list[str], *, at_once: int = NUM_REQUESTS
) -> list[tuple[str, str | None]]:
    """What each of them says, so many at a time."""
    begun = asyncio.Semaphore(at_once)
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key[0], timeout=120, max_retries=2) as http:

        async def one(name: str) -> tuple[str, str | None]:
            asked: Any = {"role": "user", "content": QUESTION}
            async with begun:
                answer = await http.chat.completions.create(model=name, messages=[asked], max_tokens=40, temperature=0)
            return name, answer.choices[0].message.content

        return await asyncio.gather(*map(one, names))


def shuffled(names: tuple[str, ...]) -> list[str]:
    return random.Random(7).choices(names, k=NUM_REQUESTS)


def test_in_a_burst_of_all_of_them_every_answer_is_the_right_one(running: Live, key: tuple[str, str]) -> None:
    from engines.vllm.scripted_adapters import answer_of

    assert load(running, key, "load", lora_name="well", lora_path=f"{FOLDER}/well", model="scripts").status_code == 200
    answers = asyncio.run(all_said(running, key, shuffled(("scripts", *ADAPTERS))))
    assert [(name, text) for name, text in answers if text != answer_of(name)] == []
    assert replicas_of(running.url) == REPLICAS


def loads_under(balancing: str | dict[str, Any], running: Live, key: tuple[str, str], bucket: str) -> float:
    """Adapters that engines load for the same requests, a few at a time, under a policy of balancing."""
    applied = running.metric("spillway_reloads_total", result="applied")
    user_config = {"models": {"scripts": {"policies": {"balancing": balancing}}}}
    deploy_document(document(key[1], bucket, running.nodes.logs.folder(NAME), user_config))
    wait_until(lambda: running.metric("spillway_reloads_total", result="applied") > applied, "it is applied")
    attempts, loads = "spillway_replica_attempts_total", "spillway_replica_adapter_loads_total"
    began, loaded = running.metric(attempts, model="scripts"), running.metric(loads, model="scripts")
    asyncio.run(all_said(running, key, shuffled(ADAPTERS), at_once=3))
    wait_until(lambda: running.metric(attempts, model="scripts") >= began + NUM_REQUESTS, "replicas have said so")
    return running.metric(loads, model="scripts") - loaded


def test_placed_by_affinity_requests_find_their_adapter_loaded_more_often_than_placed_at_random(
    running: Live, key: tuple[str, str], bucket: str
) -> None:
    """Two replicas with room for two of three adapters each: placed at random a third of the requests needs a load."""
    assert load(running, key, "load", lora_name="well", lora_path=f"{FOLDER}/well", model="scripts").status_code == 200
    by_chance, by_affinity = (loads_under(each, running, key, bucket) for each in ("random", BY_AFFINITY))
    assert replicas_of(running.url) == REPLICAS, "with fewer replicas there is no choice"
    print(f"of {NUM_REQUESTS} requests {by_chance:.0f} needed a load at random, {by_affinity:.0f} by affinity")
    assert by_chance > NUM_REQUESTS / 5
    assert by_affinity < by_chance / 3


def test_an_adapter_folder_that_is_gone_is_the_requests_error(
    running: Live, key: tuple[str, str], tmp_path: Path
) -> None:
    """Those that are listed are loaded at the start; one that has been evicted is read again."""
    link = tmp_path / "late"
    link.symlink_to(ROOT / FOLDER / "well")
    assert load(running, key, "load", lora_name="late", lora_path=str(link), model="scripts").status_code == 200
    http = client(running, key)
    assert said(http, "late")
    link.unlink()
    for name in ADAPTERS[:2]:
        asyncio.run(all_said(running, key, [name] * 8))
    answer = HTTP.post(
        f"{running.url}/v1/completions",
        json={"model": "late", "prompt": "Hello", "max_tokens": 4},
        headers={"authorization": f"Bearer {key[0]}"},
        timeout=60,
    )
    assert answer.status_code in (200, 400), answer.text
    assert said(http, "scripts") is not None

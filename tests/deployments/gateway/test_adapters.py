"""LoRA adapters in one gateway, without Ray: models of their own to clients, loaded and unloaded while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from deployments.adapters.store import AdapterStore
from deployments.configuration.models import models_in
from deployments.wire.fleet_registry import SeenReplica
from engines import Adapter, EngineRequest
from tests.deployments.adapters.stores import bucket_of, write_adapters
from tests.deployments.app_args import args, error_of
from tests.deployments.gateway_in_process import AnsweringHandle, Routes, service_in_process
from tests.tables import for_each

PATH = ".models/tiny-llama"
MODELS: list[dict[str, Any]] = [
    {
        "id": "large",
        "path": PATH,
        "pools": [{"name": "large", "role": "unified"}],
        "adapters": [{"id": "poet", "path": "/adapters/poet"}],
    },
    {"id": "small", "aliases": ["tiny"], "path": PATH, "pools": [{"name": "small", "role": "unified"}]},
]
KEYS = {"anybody": "sk-anybody", "loader": "sk-loader", "poetry": "sk-poetry"}


@contextmanager
def gateway(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[tuple[httpx.Client, dict[str, AnsweringHandle]]]:
    """A gateway of two models, whose tenant ``loader`` may load adapters and ``poetry`` may use one alone."""

    def tenant(name: str, **its: Any) -> dict[str, Any]:
        return {"name": name, "keys": [f"sha256:{sha256(KEYS[name].encode()).hexdigest()}"], **its}

    tenants = [tenant("anybody"), tenant("loader", may_load_adapters=True), tenant("poetry", models=["poet"])]
    monkeypatch.setenv("TENANTS_OF_THIS_TEST", yaml.safe_dump({"tenants": tenants}))
    handles: dict[str, AnsweringHandle] = {}
    options = {"tenants": "env:TENANTS_OF_THIS_TEST", **more}
    with (
        service_in_process(models=MODELS, handles=handles, **options) as (portal, _),
        httpx.Client(transport=Routes(portal), base_url="http://gateway") as client,
    ):
        yield client, handles


def key(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


def completed(http: httpx.Client, model: str, tenant: str = "anybody") -> httpx.Response:
    return http.post("/v1/completions", json={"model": model, "prompt": "Hello", "max_tokens": 4}, headers=key(tenant))


def changed(http: httpx.Client, what: str, tenant: str = "loader", **body: str) -> httpx.Response:
    return http.post(f"/v1/{what}_lora_adapter", json=body, headers=key(tenant))


def asked_with(handle: AnsweringHandle) -> list[Adapter]:
    """The adapter of each request that a pool was given."""
    calls = handle.calls.values()
    return [msgspec.msgpack.decode(call.arguments[0], type=EngineRequest).adapter for call in calls]


def test_an_adapter_is_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(monkeypatch) as (http, handles):
        assert completed(http, "poet").json()["model"] == "poet"
        assert completed(http, "large").json()["model"] == "large"
        assert asked_with(handles["large"]) == [Adapter("poet", "/adapters/poet"), Adapter()]
        cards = http.get("/v1/models", headers=key("anybody")).json()["data"]
        assert [(each["id"], each.get("parent")) for each in cards] == [
            ("large", None),
            ("poet", "large"),
            ("small", None),
        ]
        assert http.get("/v1/models/poet", headers=key("anybody")).json() == cards[1]


def test_a_tenant_may_be_limited_to_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(monkeypatch) as (http, _):
        assert completed(http, "poet", "poetry").status_code == 200
        refused = completed(http, "large", "poetry")
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            404,
            "the model 'large' does not exist; this deployment serves 'poet'",
        )


def test_one_that_is_loaded_while_it_runs_is_told_to_the_models_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(monkeypatch) as (http, handles):
        assert completed(http, "critic").status_code == 404
        loaded = changed(http, "load", lora_name="critic", lora_path="/adapters/critic", model="tiny")
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'critic' added successfully.")
        assert (handles["small"].changes, handles["large"].changes) == ([("critic", "/adapters/critic")], [])
        assert completed(http, "critic").status_code == 200
        assert asked_with(handles["small"]) == [Adapter("critic", "/adapters/critic")]

        removed = changed(http, "unload", lora_name="critic")
        assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'critic' removed successfully.")
        assert handles["small"].changes[-1] == ("critic", "")
        assert completed(http, "critic").status_code == 404


def test_one_that_cannot_be_loaded_is_none_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(monkeypatch) as (http, handles):
        refused = changed(http, "load", lora_name="poet", lora_path="/nowhere", model="large").json()["error"]
        assert (refused["param"], refused["code"]) == ("lora_path", "invalid_value")
        assert handles["large"].changes == [("poet", "/nowhere"), ("poet", "/adapters/poet")], "it is what it was"
        assert completed(http, "poet").status_code == 200
        changed(http, "load", lora_name="critic", lora_path="/nowhere", model="large")
        assert completed(http, "critic").status_code == 404


@for_each(
    ("what", "body", "status", "param"),
    [
        ("load", {"lora_name": "a", "lora_path": "b"}, 400, "model"),
        ("load", {"lora_name": "a", "lora_path": "b", "model": "huge"}, 404, "model"),
        ("load", {"lora_name": "large", "lora_path": "b", "model": "small"}, 400, "lora_name"),
        ("load", {"lora_name": "tiny", "lora_path": "b", "model": "small"}, 400, "lora_name"),
        ("load", {"lora_name": "poet", "lora_path": "b", "model": "small"}, 400, "lora_name"),
        ("load", {"lora_name": "", "lora_path": "b", "model": "small"}, 400, "lora_name"),
        ("load", {"lora_name": "a", "model": "small"}, 400, "lora_path"),
        ("unload", {"lora_name": "large"}, 400, "lora_name"),
        ("unload", {"lora_name": "nothing"}, 404, "model"),
    ],
)
def test_what_cannot_be_changed_is_told(
    monkeypatch: pytest.MonkeyPatch, what: str, body: dict[str, str], status: int, param: str
) -> None:
    with gateway(monkeypatch) as (http, handles):
        answer = changed(http, what, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert changed(http, what, "anybody", **body).status_code == 403
        assert not handles["large"].changes
        assert not handles["small"].changes


def test_where_there_are_no_tenants_nobody_loads_adapters() -> None:
    with (
        service_in_process(models=MODELS) as (portal, _),
        httpx.Client(transport=Routes(portal), base_url="http://gateway") as http,
    ):
        answer = http.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "b", "model": "small"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "adapters_not_allowed")


def test_what_was_loaded_by_way_of_another_gateway_is_heard_of_from_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    with service_in_process(models=MODELS) as (_, service):
        model = service._models[1]
        load = {"prefill_tokens": 0, "kv_tokens": 0, "kv_cache_usage": 0.0}
        said = {**load, "adapter_registry": {"far": (1.0, "/far")}}
        replica = SeenReplica(replica_id="r", node_id="n", max_ongoing_requests=1, stats=said)
        monkeypatch.setattr(model.host._seen, "by_pool", {"small": (replica,)})
        assert model.adapters == ("far",)
        assert service._found("far") is not None


def test_a_cached_answer_is_its_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
    with gateway(monkeypatch, response_cache={}) as (http, _):
        for model in ("poet", "large", "poet"):
            http.post("/v1/completions", json={"model": model, **body}, headers=key("anybody"))
        lines = http.get("/metrics").text.splitlines()
        hits = [each for each in lines if each.startswith("spillway_response_cache_lookups_total") and '"hit"' in each]
    assert [each.rpartition(" ")[2] for each in hits if 'model="large"' in each] == ["1.0"]


def test_engines_of_a_model_with_adapters_take_them() -> None:
    model = {"id": "m", "path": PATH, "adapters": [{"id": "poet", "path": "/adapters/poet"}]}
    (config,) = models_in(args(model=model))
    assert config.engine.args["enable_lora"] is True
    (own,) = models_in(args(model=model, engine={"args": {"enable_lora": False}}))
    assert own.engine.args["enable_lora"] is False
    twice = {**model, "adapters": [{"id": "m", "path": "/adapters/poet"}]}
    assert error_of(models_in, args(model=twice)).field == "model: ids, aliases and adapters"


# -- a store ----------------------------------------------------------------------------------------------------------


@contextmanager
def gateway_with_store(place: str) -> Iterator[httpx.Client]:
    models = [{**MODELS[0], "adapter_store": place}, MODELS[1]]
    with (
        service_in_process(models=models, vllm_front_end=None) as (portal, _),
        httpx.Client(transport=Routes(portal), base_url="http://gateway") as client,
    ):
        yield client


def test_an_adapter_of_the_store_is_a_model_once_it_is_asked_for(tmp_path: Path) -> None:
    write_adapters(tmp_path, "sql", "math")
    with bucket_of(tmp_path) as place, gateway_with_store(place) as client:
        asked = {"prompt": "hi", "max_tokens": 2}
        answer = client.post("/v1/completions", json={"model": "large:sql", **asked})
        none = client.post("/v1/completions", json={"model": "large:none", **asked})
        card = client.get("/v1/models/large:math").json()
        listed = [each["id"] for each in client.get("/v1/models").json()["data"]]

    assert (answer.status_code, answer.json()["model"]) == (200, "large:sql"), answer.text
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")
    assert (card["id"], card["parent"]) == ("large:math", "large")
    assert listed == ["large", "large:math", "large:sql", "poet", "small"]


def test_a_store_that_can_not_be_read_is_no_fault_of_the_requests(tmp_path: Path) -> None:
    write_adapters(tmp_path / "loras", "sql")
    with gateway_with_store(str(tmp_path / "loras")) as client, pytest.MonkeyPatch.context() as patch:

        def gone(store: AdapterStore, folder: str = "") -> bool:
            raise OSError("the bucket is gone")

        patch.setattr(AdapterStore, "has", gone)
        patch.setattr(AdapterStore, "folders", gone)
        late = client.post("/v1/completions", json={"model": "large:sql", "prompt": "hi"})
        own = client.post("/v1/completions", json={"model": "large", "prompt": "hi", "max_tokens": 2})
        listed = client.get("/v1/models")

    assert (late.status_code, late.json()["error"]["code"]) == (503, "adapters_unavailable")
    assert int(late.headers["retry-after"]) >= 1
    assert own.status_code == 200
    assert [each["id"] for each in listed.json()["data"]] == ["large", "poet", "small"]


def test_a_store_at_no_known_place_is_refused() -> None:
    model = {"id": "m", "path": PATH, "adapter_store": "ftp://bucket"}
    error = error_of(models_in, args(model=model))
    assert error.field == "model.adapter_store"

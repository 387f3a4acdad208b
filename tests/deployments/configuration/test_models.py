"""Several models behind one endpoint: each has pools and policies of its own, and what is wrong is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.app import check_models
from deployments.config import AppConfig, validated
from deployments.configuration.models import dumped, models_in, pools_of, read
from deployments.configuration.reloading import laid_over
from deployments.launch import load
from deployments.reload import in_place
from deployments.roll.steps import steps
from policies.errors import ConfigError
from tests.deployments.app_args import args, error_of
from tests.deployments.test_config import put
from tests.tables import for_each

PATH = ".models/tiny-llama"


def large(**more: Any) -> dict[str, Any]:
    return {"id": "large", "path": PATH, "pools": [{"name": "large", "role": "unified"}], **more}


def small(**more: Any) -> dict[str, Any]:
    return {"id": "small", "path": PATH, "pools": [{"name": "small", "role": "unified"}], **more}


def two(**shared: Any) -> dict[str, Any]:
    return {"models": [large(), small()], "policies": {"planning": "always_unified"}, **shared}


def test_one_model_is_what_it_was_and_several_are_as_if_each_were_served_alone() -> None:
    assert models_in(args()) == (validated(args()),)
    document = two(gateway={"replicas": 2}, engine={"env": {"A": "1"}})
    document["models"][1] |= {
        "aliases": ["fast"],
        "engine": {"kv_events": True},
        "policies": {"queueing": "edf"},
    }
    first, second = models_in(document)

    alone = {"model": {"id": "large", "path": PATH}, "pools": large()["pools"]}
    shared = {key: value for key, value in document.items() if key != "models"}
    assert first == validated({**shared, **alone})
    assert second.model.names == ("small", "fast")
    assert (second.policies.queueing.name, second.policies.planning.name) == ("edf", "always_unified")
    assert (second.engine.kv_events, second.engine.env) == (True, {"A": "1"})
    assert first.gateway == second.gateway


def test_a_model_may_have_another_front_end_or_none() -> None:
    document = two(gateway={"vllm_front_end": {"tool_call_parser": "hermes"}})
    document["models"][0]["vllm_front_end"] = {"tool_call_parser": "llama3_json", "max_requests": 8}
    document["models"].append({**small(id="plain", vllm_front_end=None), "pools": [{"name": "p", "role": "unified"}]})
    front_ends = [each.gateway.vllm_front_end for each in models_in(document)]

    assert [each.tool_call_parser if each else None for each in front_ends] == ["llama3_json", "hermes", None]


def test_another_process_reads_what_was_written_for_it() -> None:
    models = models_in(two())
    assert read(dumped(models)) == models


@for_each(
    ("path", "value", "field"),
    [
        ("models", [], "models"),
        ("models", {"id": "a"}, "models"),
        ("model", {"id": "a", "path": "b"}, "model"),
        ("pools", [], "pools"),
        ("models.1.id", "", "models.1.id"),
        ("models.1.speed", 7, "models.1.speed"),
        ("models.1.pools", [], "models.1.pools"),
        ("models.1.pools.0.role", "both", "models.1.pools.0.role"),
        ("models.1.policies", {"queueing": {"params": {}}}, "models.1.policies.queueing"),
        ("models.1.engine", {"kind": "steam"}, "models.1.engine.kind"),
        ("models.1.vllm_front_end", {"parser": "x"}, "models.1.vllm_front_end.parser"),
        ("models.1.id", "large", "models: ids, aliases and adapters"),
        ("models.1.aliases", ["large"], "models: ids, aliases and adapters"),
        ("models.1.pools", [{"name": "large", "role": "unified"}], "models: pools"),
        ("models.1.pools", [{"name": "gateway", "role": "unified"}], "pools"),
        ("policies", {"planning": "always_unified", "planing": "always_unified"}, "policies.planing"),
        ("gateway", {"replicas": 0}, "gateway.replicas"),
        ("engine", 7, "args"),
    ],
)
def test_what_is_wrong_is_named_where_it_stands(path: str, value: object, field: str) -> None:
    error = error_of(models_in, put(two(), path, value))
    assert error.field.startswith(field), error


def test_one_that_cannot_be_served_is_named() -> None:
    document = put(two(), "models.1.policies", {"balancing": "by_magic"})
    error = error_of(check_models, models_in(document))
    assert error.field == "model small: policies.balancing"


def test_a_pool_may_not_be_called_as_the_deployment_that_clients_talk_to() -> None:
    assert error_of(models_in, args(pools=[{"name": "gateway", "role": "unified"}])).field == "pools"


@for_each(("models", "is_known"), [(["small"], True), (["small", "huge"], False)])
def test_tenants_may_use_models_that_there_are(tmp_path: Path, models: list[str], is_known: bool) -> None:
    file = tmp_path / "tenants.yaml"
    key = f"sha256:{'0' * 64}"
    file.write_text(yaml.safe_dump({"tenants": [{"name": "shop", "keys": [key], "models": models}]}))
    served = models_in(two(gateway={"tenants": str(file)}))
    if is_known:
        check_models(served)
        return
    error = error_of(check_models, served)
    assert "ids of models and adapters, which are large, small" in error.allowed
    assert "huge" not in str(error), "it could be a key"


# -- while they run ---------------------------------------------------------------------------------------------------


def test_what_changes_for_one_model_leaves_the_other_as_it_is() -> None:
    base = models_in(two())
    user_config = {"policies": {"queueing": "edf"}, "models": {"small": {"policies": {"queueing": "fair"}}}}
    first, second = laid_over(base, {**user_config, "gateway": {"retry_after_s": 9}})

    assert (first.policies.queueing.name, second.policies.queueing.name) == ("edf", "fair")
    assert {each.gateway.retry_after_s for each in (first, second)} == {9.0}


@for_each(
    ("change", "field"),
    [
        ({"huge": {}}, "user_config.models.huge"),
        ({"small": {"pools": []}}, "user_config.models.small.pools"),
        ({"small": {"policies": {"queueing": 7}}}, "user_config.models.small.policies.queueing"),
        (["small"], "user_config.models"),
    ],
)
def test_what_cannot_change_for_one_model_is_named(change: object, field: str) -> None:
    assert error_of(laid_over, models_in(two()), {"models": change}).field == field


def file_of(document: dict[str, Any], folder: Path) -> Path:
    path = folder / "serve.yaml"
    application = {"name": "spillway", "import_path": "deployments.app:build", "args": document}
    path.write_text(yaml.safe_dump({"applications": [application]}))
    return path


def test_pools_of_all_models_can_be_resized_and_rolled(tmp_path: Path) -> None:
    running = load(file_of(two(), tmp_path))
    resized = load(file_of(put(two(), "models.1.pools.0.replicas", 3), tmp_path))
    rolled = load(file_of(two(), tmp_path))
    rolled["applications"][0]["deployments"] = [{"name": "small", "user_config": {"engine_args": {"max_num_seqs": 2}}}]

    assert [pool["name"] for pool in pools_of(running["applications"][0]["args"])] == ["large", "small"]
    assert in_place(resized, running)["applications"][0]["deployments"] == [{"num_replicas": 3, "name": "small"}]
    assert [each.what for each in steps(rolled, running, {}, 0.2)] == ["pool small: all 1 replicas"]


def test_pydantics_own_words_reach_a_reader_who_has_one_model() -> None:
    with pytest.raises(ConfigError, match="pools"):
        models_in(args(pools=[]))
    assert isinstance(models_in(args())[0], AppConfig)

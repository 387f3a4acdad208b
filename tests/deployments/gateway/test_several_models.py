"""Several models in one gateway, without Ray: a request goes to the one that it names, and tenants see their own."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import pytest
import yaml

from cluster.clock import unix_s
from tests.deployments.gateway_in_process import gateway_in_process, service_in_process
from tests.tables import for_each

PATH = ".models/tiny-llama"
MODELS: list[dict[str, Any]] = [
    {"id": "large", "aliases": ["gpt-4o"], "path": PATH, "pools": [{"name": "large", "role": "unified"}]},
    {"id": "small", "path": PATH, "pools": [{"name": "small", "role": "unified"}]},
]
ALL, ONE = "sk-all", "sk-one"


def key(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture(scope="module", params=[True, False], ids=["hot_routes", "routes"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with gateway_in_process(is_hot=request.param, models=MODELS) as client:
        yield client


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A gateway one of whose tenants may use the small model alone."""

    def tenant(name: str, secret: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "keys": [f"sha256:{sha256(secret.encode()).hexdigest()}"], **more}

    tenants = {"tenants": [tenant("all", ALL), tenant("one", ONE, models=["small"])]}
    monkeypatch.setenv("TENANTS_OF_THIS_TEST", yaml.safe_dump(tenants))
    with gateway_in_process(models=MODELS, tenants="env:TENANTS_OF_THIS_TEST") as client:
        yield client


def completed(http: httpx.Client, model: object, **headers: str) -> httpx.Response:
    body = {"model": model, "prompt": "Hello", "max_tokens": 4}
    return http.post("/v1/completions", json=body, headers=headers)


def counted(http: httpx.Client) -> dict[str, float]:
    """Requests that were completed, by model."""
    lines = http.get("/metrics").text.splitlines()
    return {
        line.partition('model="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("spillway_requests_total") and 'outcome="completed"' in line
    }


def test_a_request_goes_to_the_model_that_it_names_by_its_id_or_an_alias(http: httpx.Client) -> None:
    before = counted(http)
    said = [completed(http, name).json()["model"] for name in ("large", "gpt-4o", "small")]
    after = counted(http)

    assert said == ["large", "large", "small"]
    assert {name: after[name] - before.get(name, 0.0) for name in after} == {"large": 2.0, "small": 1.0}


def test_both_are_listed_and_each_has_a_card(http: httpx.Client) -> None:
    cards = http.get("/v1/models").json()["data"]
    assert [each["id"] for each in cards] == ["large", "small"]
    assert http.get("/v1/models/gpt-4o").json() == cards[0]
    assert http.get("/v1/models/huge").status_code == 404


def test_ready_is_when_all_models_are(http: httpx.Client) -> None:
    assert http.get("/ready").json() == {"status": "ready", "replicas": {"large": 1, "small": 1}}


@for_each(("model", "status", "code"), [("huge", 404, "model_not_found"), (7, 400, "invalid_value")])
def test_a_model_that_there_is_not_is_an_error(http: httpx.Client, model: object, status: int, code: str) -> None:
    answer = completed(http, model)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
        status,
        code,
        "model",
    )


def test_a_body_without_a_model_is_told_so(http: httpx.Client) -> None:
    error = http.post("/v1/chat/completions", json={"messages": []}).json()["error"]
    assert (error["code"], error["param"]) == ("missing_required_parameter", "model")


def test_to_tokenize_takes_a_models_name_where_there_are_several(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"prompt": "Hello"}).json()["error"]["param"] == "model"
    tokens = http.post("/tokenize", json={"prompt": "Hello", "model": "small"}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["error"]["param"] == "model"
    assert "Hello" in http.post("/detokenize", json={"tokens": tokens, "model": "gpt-4o"}).json()["prompt"]


def test_a_tenant_has_its_own_models_and_does_not_learn_of_others(keyed: httpx.Client) -> None:
    listed = [each["id"] for each in keyed.get("/v1/models", headers=key(ONE)).json()["data"]]
    refused = completed(keyed, "large", **key(ONE)).json()["error"]
    unknown = completed(keyed, "huge", **key(ONE)).json()["error"]

    assert listed == ["small"]
    assert completed(keyed, "small", **key(ONE)).status_code == 200
    assert completed(keyed, "large", **key(ALL)).status_code == 200
    assert {each["message"].replace("huge", "large") for each in (refused, unknown)} == {
        "the model 'large' does not exist; this deployment serves 'small'"
    }
    assert keyed.get("/v1/models/large", headers=key(ONE)).status_code == 404
    assert keyed.post("/tokenize", json={"prompt": "a", "model": "large"}, headers=key(ONE)).status_code == 404


def test_a_change_that_one_model_cannot_take_changes_none() -> None:
    bad = {"policies": {"queueing": "edf"}, "models": {"small": {"policies": {"admission": "bouncer"}}}}
    with service_in_process(models=MODELS) as (portal, service):
        portal.call(service.reconfigure, {})
        portal.call(service.reconfigure, bad)
        after_bad = [each.config.policies.queueing.name for each in service._models]
        portal.call(service.reconfigure, {"models": {"small": {"policies": {"queueing": "edf"}}}})
        after_good = [each.config.policies.queueing.name for each in service._models]

    assert (after_bad, after_good) == (["fcfs", "fcfs"], ["fcfs", "edf"])


# -- one deadline for several calls -----------------------------------------------------------------------------------


@for_each("streams", [True, False])
def test_who_names_a_deadline_is_told_what_is_left(http: httpx.Client, streams: bool) -> None:
    body = {"model": "small", "prompt": "Hello", "max_tokens": 4, "stream": streams}
    answer = http.post("/v1/completions", json=body, headers={"x-request-deadline": f"{unix_s() + 60:.3f}"})
    assert answer.status_code == 200
    assert 50 < float(answer.headers["x-request-time-left-seconds"]) <= 60
    assert "x-request-time-left-seconds" not in http.post("/v1/completions", json=body).headers


def test_a_call_after_the_deadline_is_refused_at_once_whichever_model_it_asks(http: httpx.Client) -> None:
    for model in ("large", "small"):
        refused = completed(http, model, **{"x-request-deadline": f"{unix_s() - 1:.3f}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert float(refused.headers["x-request-time-left-seconds"]) == 0.0

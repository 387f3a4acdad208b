"""Keys, classes, deadlines and refusals through Ray Serve, in front of an emulated engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from deployments.config import ROOT
from deployments.tenants import new_key
from policies import Reason
from tests.deployments.live_cluster import Live, RayNodes
from tests.engines.emulated_engines import ensure_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "tenants"
MODEL = "tiny-llama"
CEILINGS = {"shop": "critical", "reports": "sheddable"}
KEYS = {name: new_key() for name in CEILINGS}


def application_args(tenants: Path) -> dict[str, Any]:
    """One emulated replica, whose gateway lets nothing in that is sheddable."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.01}]
    args["gateway"] |= {"num_cpus": 0.01, "tenants": str(tenants)}
    args["policies"] = {"planning": "always_unified", "admission": "tests.policy_doubles:RefuseSheddable"}
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    from ray import serve

    from deployments.app import build, read_config

    ensure_tokenizer()
    file = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    entries = [{"name": name, "keys": [KEYS[name][1]], "max_priority": CEILINGS[name]} for name in CEILINGS]
    file.write_text(yaml.safe_dump({"tenants": entries}))
    serve.run(build(read_config(application_args(file))), name=APPLICATION, route_prefix="/tenants")
    where = f"{nodes.url}/tenants"
    wait_until(lambda: httpx.get(f"{where}/ready").status_code == 200, "the replica is warm")
    yield Live(url=where, nodes=nodes)
    serve.delete(APPLICATION)


def ask(running: Live, key: str, *, timeout_s: float = 60, **fields: Any) -> Any:
    """A completion by OpenAI's own client; of a stream, all its events."""
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=timeout_s) as client:
        answer = client.completions.create(model=MODEL, prompt="Hello", **{"max_tokens": 4, **fields})
        return list(answer) if fields.get("stream") else answer


def key_of(name: str) -> str:
    return KEYS[name][0]


def test_who_has_a_key_is_served_and_what_needs_none_stays_open(running: Live) -> None:
    assert ask(running, key_of("shop"), extra_headers={"x-priority": "critical"}).usage.completion_tokens == 4
    for path in ("health", "ready", "metrics"):
        assert httpx.get(f"{running.url}/{path}").status_code == 200


def test_without_a_key_or_with_a_wrong_one_nothing_is_served(running: Live) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(running, new_key()[0])
    missing = [
        httpx.get(f"{running.url}/v1/models"),
        *(
            httpx.post(f"{running.url}/{path}", json={})
            for path in ("v1/completions", "v1/chat/completions", "tokenize")
        ),
    ]

    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    assert [answer.status_code for answer in missing] == [401] * 4
    assert {answer.json()["error"]["code"] for answer in missing} == {"invalid_api_key"}


def test_a_class_above_the_ceiling_is_forbidden(running: Live) -> None:
    with pytest.raises(openai.PermissionDeniedError) as caught:
        ask(running, key_of("reports"), extra_headers={"x-priority": "standard"})

    assert (caught.value.code, caught.value.param) == ("priority_not_allowed", "x-priority")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_is_told_why_and_when_to_come_back(running: Live, stream: bool) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        ask(running, key_of("reports"), stream=stream)

    headers = caught.value.response.headers
    assert (caught.value.code, caught.value.type) == ("queue_full", "rate_limit_error")
    assert Reason(headers["x-spillway-reason"]) is Reason.QUEUE_FULL
    assert 8 <= int(headers["retry-after"]) <= 12, "so long as the policy said, and up to half as long again"


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-request-timeout-seconds": "1"}, {}),
        ({}, {"timeout": 0.9}),
        ({"x-request-timeout-seconds": "9"}, {"timeout": 1}),
    ],
    ids=["header", "field", "both"],
)
def test_a_request_ends_at_its_own_deadline_with_a_reason_and_not_with_serves_408(
    running: Live, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ask(running, key_of("shop"), max_tokens=8000, extra_headers=headers, extra_body={"ignore_eos": True, **fields})

    assert caught.value.status_code == 504
    assert Reason(caught.value.response.headers["x-spillway-reason"]) is Reason.DEADLINE_EXCEEDED


def test_a_stream_that_reaches_its_deadline_ends_with_an_event_that_says_so(running: Live) -> None:
    with pytest.raises(openai.APIError) as caught:
        ask(
            running,
            key_of("shop"),
            max_tokens=8000,
            stream=True,
            extra_headers={"x-request-timeout-seconds": "1"},
            extra_body={"ignore_eos": True},
        )

    assert caught.value.code == "deadline_exceeded"


def test_no_key_is_in_the_metrics_nor_in_the_logs_of_the_gateway(running: Live) -> None:
    metrics = httpx.get(f"{running.url}/metrics").text

    assert not [name for name in KEYS if key_of(name) in metrics or KEYS[name][1].removeprefix("sha256:") in metrics]
    assert running.metric("spillway_http_errors_total", status="401", code="invalid_api_key") >= 5
    assert running.metric("spillway_http_errors_total", status="403", code="priority_not_allowed") == 1
    assert running.metric("spillway_requests_total", outcome="refused", reason="queue_full") == 2
    wait_until(lambda: running.metric("spillway_requests_open") == 0, "nothing is left open")

"""Degraded answers through Ray Serve, in front of an emulated engine."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import yaml

from deployments.config import ROOT
from deployments.wire.degradation import HEADER
from tests.deployments.live_cluster import Live, RayNodes
from tests.engines.emulated_engines import ensure_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "degraded"
LESS = "tests.policy_doubles:DegradeTo"
CAP_TOKENS = 6
BOX_S = 0.5

APPLICATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    APPLICATION: (LESS, {"time_box_s": BOX_S}),
    "capped": (LESS, {"max_output_tokens": CAP_TOKENS}),
    "cached": ("from_cache", {}),
}
BODY = {"model": "tiny-llama", "prompt": "Hello", "ignore_eos": True, "temperature": 0}


def application_args(policy: str, **params: Any) -> dict[str, Any]:
    """One emulated replica behind a gateway that degrades, and keeps answers."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.01}]
    args["gateway"] |= {"num_cpus": 0.01, "response_cache": {"max_bytes": 100_000, "ttl_s": 600}}
    degradation = {"name": policy, "params": params}
    args["policies"] = {"planning": "always_unified", "degradation": degradation}
    return args


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/ready", timeout=30).status_code == 200


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    """Three deployments: answers end after half a second, have six tokens, or are known."""
    from ray import serve

    from deployments.app import build, read_config

    ensure_tokenizer()
    for name, (policy, params) in APPLICATIONS.items():
        serve.run(build(read_config(application_args(policy, **params))), name=name, route_prefix=f"/{name}")
        ready = partial(is_ready, f"{nodes.url}/{name}")
        wait_until(ready, "the replica is warm")
    yield Live(url=f"{nodes.url}/{APPLICATION}", nodes=nodes)
    for name in APPLICATIONS:
        serve.delete(name)


def test_a_capped_answer_is_cut_at_its_length_and_says_so(running: Live) -> None:
    answer = httpx.post(f"{running.nodes.url}/capped/v1/completions", json={**BODY, "max_tokens": 50}, timeout=60)

    (choice,) = answer.json()["choices"]
    assert answer.status_code == 200
    assert choice["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == CAP_TOKENS
    assert answer.headers[HEADER] == f"max_tokens={CAP_TOKENS}"


def test_a_stream_says_it_before_the_first_token_and_openais_client_sees_it(running: Live) -> None:
    with openai.OpenAI(base_url=f"{running.nodes.url}/capped/v1", api_key="none", max_retries=0, timeout=60) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="tiny-llama",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=50,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        assert raw.headers[HEADER] == f"max_tokens={CAP_TOKENS}"
        chunks = list(raw.parse())

    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == CAP_TOKENS


def test_who_is_not_degraded_gets_no_header(running: Live) -> None:
    body = {**BODY, "max_tokens": 50, "priority": "critical"}

    answer = httpx.post(f"{running.nodes.url}/capped/v1/completions", json=body, timeout=60)

    assert answer.json()["usage"]["completion_tokens"] == 50
    assert HEADER not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_when_its_time_is_up_with_length_and_usage(running: Live, stream: bool) -> None:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        asked: dict[str, Any] = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 8000}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = client.completions.with_raw_response.create(**asked, extra_body={"ignore_eos": True})
        assert raw.headers[HEADER] == f"time_box={BOX_S}s"
        parsed: Any = raw.parse()
        events = list(parsed) if stream else [parsed]

    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "length"
    usage = events[-1].usage
    assert usage is not None
    assert 0 < usage.completion_tokens < 8000, "what was given counts, and no more"
    wait_until(lambda: running.metric("spillway_requests_open") == 0, "nothing is left open")
    wait_until(lambda: running.metric("spillway_replica_num_requests_running") == 0, "the engine has stopped too")


def test_degraded_answers_are_counted_by_kind_and_class(running: Live) -> None:
    labels = {"kind": "time_box", "class": "standard"}
    before = running.metric("spillway_degraded_total", **labels)

    httpx.post(f"{running.url}/v1/completions", json={**BODY, "max_tokens": 2}, timeout=60)

    assert running.metric("spillway_degraded_total", **labels) == before + 1
    assert running.metric("spillway_degraded_total", kind="max_tokens") == 0


def test_an_equal_request_gets_the_known_answer_and_whoever_asks_otherwise_a_new_one(running: Live) -> None:
    cached = Live(url=f"{running.nodes.url}/cached", nodes=running.nodes)

    def ask(**changes: Any) -> httpx.Response:
        headers = {"x-tenant-id": changes.pop("tenant", "shop")}
        body = {**BODY, "max_tokens": 12, **changes}
        return httpx.post(f"{cached.url}/v1/completions", json=body, headers=headers, timeout=60)

    first, again = ask(), ask()
    streamed = ask(stream=True)
    others = [ask(max_tokens=13), ask(temperature=0.7), ask(tenant="reports")]

    assert HEADER not in first.headers
    assert [each.headers.get(HEADER) for each in (again, streamed)] == ["cache", "cache"]
    assert [HEADER in each.headers for each in others] == [False] * 3
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["id"] != first.json()["id"]
    assert again.json()["usage"]["completion_tokens"] == 12
    assert first.json()["choices"][0]["text"] in streamed.text
    assert streamed.text.rstrip().endswith("[DONE]")
    assert cached.metric("spillway_degraded_total", kind="cache") == 2
    assert cached.metric("spillway_response_cache_lookups_total", result="hit") == 2
    assert cached.metric("spillway_attempts_total") == 4
    assert cached.metric("spillway_requests_open") == 0

"""Degraded answers through Ray Serve, in front of an emulated engine."""

from typing import Any

import httpx
import openai
import pytest

from deployments.wire.degradation import HEADER
from tests.deployments.live_cluster import Live
from tests.deployments.reloadable import KEYS, Reloadable, headers_of
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

CAP_TOKENS = 6
LIMIT_S = 0.5
BODY = {"model": "tiny-llama", "prompt": "Hello", "ignore_eos": True, "temperature": 0}


def degrade_to(**params: Any) -> dict[str, Any]:
    """Whoever is not critical gets less."""
    return {"name": "tests.policy_doubles:DegradeTo", "params": params}


@pytest.fixture
def capped(reloadable: Reloadable) -> Live:
    """Answers have six tokens."""
    return reloadable.use(degradation=degrade_to(max_output_tokens=CAP_TOKENS))


@pytest.fixture
def boxed(reloadable: Reloadable) -> Live:
    """Answers end after half a second."""
    return reloadable.use(degradation=degrade_to(output_time_limit_s=LIMIT_S))


@pytest.fixture
def cached(reloadable: Reloadable) -> Live:
    """Answers are those that are known."""
    return reloadable.use(degradation="from_cache")


def post(live: Live, *, tenant: str = "shop", **fields: Any) -> httpx.Response:
    body = {**BODY, **fields}
    return HTTP.post(f"{live.url}/v1/completions", json=body, headers=headers_of(tenant), timeout=60)


def openai_client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEYS["shop"][0], max_retries=0, timeout=60)


def test_a_capped_answer_is_cut_at_its_length_and_says_so(capped: Live) -> None:
    answer = post(capped, max_tokens=50)

    (choice,) = answer.json()["choices"]
    assert answer.status_code == 200
    assert choice["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == CAP_TOKENS
    assert answer.headers[HEADER] == f"max_tokens={CAP_TOKENS}"


def test_a_stream_says_it_before_the_first_token_and_openais_client_sees_it(capped: Live) -> None:
    with openai_client(capped) as client:
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


def test_who_is_not_degraded_gets_no_header(capped: Live) -> None:
    answer = post(capped, max_tokens=50, priority="critical")

    assert answer.json()["usage"]["completion_tokens"] == 50
    assert HEADER not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_when_its_time_is_up_with_length_and_usage(boxed: Live, stream: bool) -> None:
    with openai_client(boxed) as client:
        asked: dict[str, Any] = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 8000}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = client.completions.with_raw_response.create(**asked, extra_body={"ignore_eos": True})
        assert raw.headers[HEADER] == f"output_time_limit={LIMIT_S}s"
        parsed: Any = raw.parse()
        events = list(parsed) if stream else [parsed]

    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "length"
    usage = events[-1].usage
    assert usage is not None
    assert 0 < usage.completion_tokens < 8000, "what was given counts, and no more"
    wait_until(lambda: boxed.metric("spillway_requests_open") == 0, "nothing is left open")
    wait_until(lambda: boxed.metric("spillway_replica_num_requests_running") == 0, "the engine has stopped too")


def test_degraded_answers_are_counted_by_kind_and_class(boxed: Live) -> None:
    labels = {"kind": "output_time_limit", "class": "standard"}
    before, others = degraded(boxed, **labels), degraded(boxed, kind="max_tokens")

    post(boxed, max_tokens=2)

    assert degraded(boxed, **labels) == before + 1
    assert degraded(boxed, kind="max_tokens") == others


def degraded(live: Live, **labels: str) -> float:
    return live.metric("spillway_degraded_total", **labels)


def test_an_equal_request_gets_the_known_answer_and_whoever_asks_otherwise_a_new_one(cached: Live) -> None:
    hits = ("spillway_response_cache_lookups_total", {"result": "hit"})
    counts = [("spillway_degraded_total", {"kind": "cache"}), hits, ("spillway_attempts_total", {})]
    before = [cached.metric(name, **labels) for name, labels in counts]

    first, again = post(cached, max_tokens=12), post(cached, max_tokens=12)
    streamed = post(cached, max_tokens=12, stream=True)
    others = [
        post(cached, max_tokens=13),
        post(cached, max_tokens=12, temperature=0.7),
        post(cached, max_tokens=12, tenant="reports"),
    ]

    assert HEADER not in first.headers
    assert [each.headers.get(HEADER) for each in (again, streamed)] == ["cache", "cache"]
    assert [HEADER in each.headers for each in others] == [False] * 3
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["id"] != first.json()["id"]
    assert again.json()["usage"]["completion_tokens"] == 12
    assert first.json()["choices"][0]["text"] in streamed.text
    assert streamed.text.rstrip().endswith("[DONE]")
    after = [cached.metric(name, **labels) for name, labels in counts]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 2, 4]
    assert cached.metric("spillway_requests_open") == 0

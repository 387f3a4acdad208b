"""Keys, classes, deadlines and refusals through Ray Serve, in front of an emulated engine."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from deployments.tenants.keys import new_key
from policies import Reason
from tests.deployments.live_cluster import Live
from tests.deployments.reloadable import KEYS, Reloadable, write_tenants
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

MODEL = "tiny-llama"
REFUSES_SHEDDABLE = "tests.policy_doubles:RefuseSheddable"


@pytest.fixture(scope="module")
def running(reloadable: Reloadable) -> Live:
    """Nothing that is sheddable is let in."""
    return reloadable.use(admission=REFUSES_SHEDDABLE)


def ask(running: Live, key: str, *, timeout_s: float = 60, **fields: Any) -> Any:
    """A completion by OpenAI's own client; of a stream, all its events."""
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=timeout_s) as client:
        answer = client.completions.create(model=MODEL, prompt="Hello", **{"max_tokens": 4, **fields})
        return list(answer) if fields.get("stream") else answer


@pytest.fixture
def limited(reloadable: Reloadable) -> Iterator[Live]:
    """The shop may send two requests a minute; without limits again afterwards."""
    write_tenants(reloadable.tenants, shop={"limits": {"requests_per_min": 2}})
    yield reloadable.use()
    write_tenants(reloadable.tenants)
    reloadable.use()


def key_of(name: str) -> str:
    return KEYS[name][0]


def test_who_has_a_key_is_served_and_what_needs_none_stays_open(running: Live) -> None:
    assert ask(running, key_of("shop"), extra_headers={"x-priority": "critical"}).usage.completion_tokens == 4
    for path in ("health", "ready", "metrics"):
        assert HTTP.get(f"{running.url}/{path}").status_code == 200


def test_without_a_key_or_with_a_wrong_one_nothing_is_served(running: Live) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(running, new_key()[0])
    missing = [
        HTTP.get(f"{running.url}/v1/models"),
        *(
            HTTP.post(f"{running.url}/{path}", json={})
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


@pytest.fixture
def open_to_all(reloadable: Reloadable, running: Live) -> Iterator[Live]:
    """Both tenants are let in."""
    yield reloadable.use(admission="always_admit")
    reloadable.use(admission=REFUSES_SHEDDABLE)


def test_a_tenant_can_not_tell_from_the_prefix_cache_what_another_one_has_sent(open_to_all: Live) -> None:
    secret = [100 + number % 800 for number in range(400)]

    def num_cached(name: str, **fields: Any) -> int:
        with openai.OpenAI(base_url=f"{open_to_all.url}/v1", api_key=key_of(name), max_retries=0, timeout=60) as client:
            answer = client.completions.create(model=MODEL, prompt=secret, max_tokens=1, extra_body=fields)
        details = answer.usage and answer.usage.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0

    assert num_cached("shop") == 0
    assert num_cached("shop") > 300, "its own it finds"
    assert num_cached("reports") == 0
    assert num_cached("shop", cache_salt="narrower") == 0


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


def test_refusals_are_counted_and_no_key_is_in_the_metrics(running: Live) -> None:
    counts = [
        ("spillway_http_errors_total", {"status": "401", "code": "invalid_api_key"}),
        ("spillway_http_errors_total", {"status": "403", "code": "priority_not_allowed"}),
        ("spillway_requests_total", {"outcome": "refused", "reason": "queue_full"}),
    ]
    before = [running.metric(name, **labels) for name, labels in counts]
    for key, priority in (
        (new_key()[0], "standard"),
        (key_of("reports"), "standard"),
        (key_of("reports"), "sheddable"),
    ):
        with pytest.raises(openai.APIStatusError):
            ask(running, key, extra_headers={"x-priority": priority})

    metrics = HTTP.get(f"{running.url}/metrics").text
    after = [running.metric(name, **labels) for name, labels in counts]

    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1]
    assert not [name for name in KEYS if key_of(name) in metrics or KEYS[name][1].removeprefix("sha256:") in metrics]
    wait_until(lambda: running.metric("spillway_requests_open") == 0, "nothing is left open")


def test_a_tenants_limits_hold_and_its_clients_are_told_what_is_left(limited: Live) -> None:
    with openai.OpenAI(base_url=f"{limited.url}/v1", api_key=key_of("shop"), max_retries=0, timeout=60) as client:
        answers = [
            client.completions.with_raw_response.create(model=MODEL, prompt="Hello", max_tokens=4) for _ in range(2)
        ]
        assert [each.headers["x-ratelimit-remaining-requests"] for each in answers] == ["1", "0"]
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model=MODEL, prompt="Hello", max_tokens=4)

    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 30
    assert ask(limited, key_of("reports")).usage.completion_tokens == 4

"""Whatever the gateway lets through, a real engine answers; what comes before that, ``test_fuzz_in_process`` draws."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.deployments.fuzzed_bodies import chats, completions, send, short
from tests.deployments.live_cluster import MODEL, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

SOME = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def none_of_them_fails(live: Live) -> Iterator[None]:
    """Of other modules' requests some do: an answer whose time is up after its first token."""
    failed = live.metric("spillway_requests_total", outcome="failed")
    yield
    live.wait_until_idle()
    assert live.metric("spillway_requests_total", outcome="failed") == failed


@SOME
@given(body=completions)
def test_no_completion_makes_the_server_fail(http: httpx.Client, body: dict[str, Any]) -> None:
    send(http, "/v1/completions", short(body))


@SOME
@given(body=chats)
def test_no_chat_makes_the_server_fail(http: httpx.Client, body: dict[str, Any]) -> None:
    send(http, "/v1/chat/completions", short(body))


def test_after_all_of_it_the_replicas_are_the_same_and_nothing_is_left_open(live: Live, http: httpx.Client) -> None:
    live.wait_until_idle()

    assert live.metric("spillway_replicas") == 2
    assert http.post("/v1/completions", json={"model": MODEL, "prompt": "water"}).status_code == 200

"""Models, tokenization, operations, and every error in OpenAI's shape."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deployments.api_errors import a_completion, error_of
from tests.deployments.live_cluster import MAX_BODY_BYTES, MODEL, Live
from tests.plain_http import HTTP

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

CONTEXT_TOKENS = 8192


# -- models and tokenization ------------------------------------------------------------------------------------------


def test_the_model_is_listed_and_can_be_retrieved(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data

    assert card.id == MODEL
    assert card.object == "model"
    assert card.created > 0
    assert card.owned_by == "spillway"
    assert client.models.retrieve(MODEL) == card


def test_retrieving_another_model_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody/nothing")

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_tokenize_gives_the_token_ids_of_a_prompt(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"model": MODEL, "prompt": "water and wood"}).json()

    assert answer["count"] == len(answer["tokens"]) > 0
    assert answer["max_model_len"] == CONTEXT_TOKENS
    assert all(isinstance(token, int) for token in answer["tokens"])


def test_tokenize_gives_the_token_ids_of_messages_in_the_chat_template(live: Live) -> None:
    message = {"role": "user", "content": "water"}

    open_turn = live.token_ids(messages=[message])
    closed = live.token_ids(messages=[message], add_generation_prompt=False)

    assert open_turn[: len(closed)] == closed
    assert len(open_turn) > len(closed) > len(live.token_ids(prompt="water"))


# -- operations -------------------------------------------------------------------------------------------------------


def test_health_says_that_the_gateway_lives(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200


def test_metrics_are_what_prometheus_reads(http: httpx.Client) -> None:
    answer = http.get("/metrics")

    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert answer.headers["content-type"].startswith("text/plain")
    assert families["spillway_requests"].type == "counter"
    assert families["spillway_time_to_first_token_seconds"].type == "histogram"
    assert {sample.labels["pool"] for sample in families["spillway_replicas"].samples} == {"prefill", "decode"}
    assert all(family.documentation for family in families.values())


def test_a_completed_request_is_counted_once(live: Live, client: openai.OpenAI) -> None:
    live.wait_until_idle()
    names = ("spillway_requests_total", "spillway_time_to_first_token_seconds_count")
    before = [live.metric(name) for name in names]

    client.completions.create(model=MODEL, prompt="water", max_tokens=3)

    assert [live.metric(name) for name in names] == [count + 1 for count in before]


# -- errors, as they come through Serve; ``test_api_errors`` has all of them ----------------------------------------


def test_what_is_known_and_not_served_is_a_bad_request_that_names_it(client: openai.OpenAI) -> None:
    beams = {"use_beam_search": True}
    with pytest.raises(openai.BadRequestError) as in_completions:
        client.completions.create(model=MODEL, prompt="water", extra_body=beams)
    with pytest.raises(openai.BadRequestError) as in_chat:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "water"}], extra_body=beams)

    assert in_completions.value.param == in_chat.value.param == "use_beam_search"


def test_an_unknown_model_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-99", prompt="water")

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_a_stream_that_is_refused_is_a_plain_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[9] * 9000, stream=True)

    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("request_of", "status", "code", "param"),
    [
        ({"content": b"{"}, 400, "invalid_json", None),
        ({"json": a_completion(temperature=2.1)}, 400, "invalid_value", "temperature"),
        ({"json": a_completion(), "headers": {"x-priority": "urgent"}}, 400, "invalid_value", "x-priority"),
        ({"json": a_completion(prompt="a" * MAX_BODY_BYTES)}, 413, "body_too_long", None),
        ({"url": "/v1/nothing", "json": {}}, 404, "not_found", None),
        ({"method": "GET"}, 405, "method_not_allowed", None),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_error_comes_through_serve_as_it_was_made(
    http: httpx.Client, request_of: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    error = error_of(http.request(**{"method": "POST", "url": "/v1/completions", **request_of}), status)

    assert (error["code"], error["param"]) == (code, param)


def test_a_body_that_is_too_long_is_refused_also_without_a_declared_length(http: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(20):
            yield b"a" * (MAX_BODY_BYTES // 10)

    assert error_of(http.post("/v1/completions", content=parts()), 413)["code"] == "body_too_long"


def test_every_class_is_served_by_an_engine_that_does_not_order_by_it(http: httpx.Client) -> None:
    for priority in ("critical", "sheddable", -1, 1):
        assert http.post("/v1/completions", json=a_completion(priority=priority)).status_code == 200


def test_another_try_of_a_clients_is_counted(live: Live) -> None:
    """By what OpenAI's library says, and by the key of one that was not answered."""
    before = {told_by: live.metric("spillway_client_retries_total", told_by=told_by) for told_by in ("header", "key")}
    endless = a_completion(max_tokens=4000, ignore_eos=True, timeout=1)  # takes many times the second that it is given
    late = {"idempotency-key": "k-1"}
    sent = (
        (endless, late, 504),
        (a_completion(), {"idempotency-key": "k-1"}, 429),
        (a_completion(), {"x-stainless-retry-count": "1"}, 200),
    )
    for body, headers, status in sent:
        assert HTTP.post(f"{live.url}/v1/completions", json=body, headers=headers).status_code == status

    for told_by, num_before in before.items():
        assert live.metric("spillway_client_retries_total", told_by=told_by) == num_before + 1

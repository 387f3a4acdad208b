"""Models, tokenization, operations, and every error in OpenAI's shape."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deployments.live_cluster import MAX_BODY_BYTES, MODEL, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

CONTEXT_TOKENS = 8192


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error in the body, which must have OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    (key,) = answer.json()
    assert key == "error"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    return error


def a_completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "water", "max_tokens": 2} | fields


def a_chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "water"}], "max_tokens": 2} | fields


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


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}])
def test_tokenize_wants_either_a_prompt_or_messages(http: httpx.Client, body: dict[str, Any]) -> None:
    assert error_of(http.post("/tokenize", json=body), 400)["param"] == "prompt"


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


def test_the_schema_describes_every_endpoint(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]

    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/metrics"} <= set(paths)
    assert "requestBody" in paths["/v1/completions"]["post"]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_more_than_one_choice_is_a_bad_request_that_names_n(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as in_completions:
        client.completions.create(model=MODEL, prompt="water", n=2)
    with pytest.raises(openai.BadRequestError) as in_chat:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "water"}], n=2)

    assert in_completions.value.param == in_chat.value.param == "n"


def test_an_unknown_model_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-99", prompt="water")

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "param"),
    [(8192, 1, "prompt"), (9000, 5, "prompt"), (8191, 2, "max_tokens"), (10, 8183, "max_tokens")],
)
def test_a_request_over_the_context_is_a_bad_request_with_a_code(
    client: openai.OpenAI, prompt_tokens: int, max_tokens: int, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[9] * prompt_tokens, max_tokens=max_tokens)

    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == param


def test_a_stream_that_is_refused_is_a_plain_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[9] * 9000, stream=True)

    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"model": }', b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 5000],
    ids=["empty", "open", "no_value", "not_utf8", "half_a_character", "too_deep"],
)
def test_a_body_that_is_not_json_is_a_bad_request(http: httpx.Client, path: str, content: bytes) -> None:
    assert error_of(http.post(path, content=content), 400)["code"] == "invalid_json"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("content", [b"null", b"[]", b"7", b'"text"'])
def test_json_that_is_not_an_object_is_a_bad_request(http: httpx.Client, path: str, content: bytes) -> None:
    error_of(http.post(path, content=content), 400)


WRONG_SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "7"}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 1.5}, "seed"),
    ({"stop": 7}, "stop"),
    ({"stop": ["a", 7]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop_token_ids": [1024]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"logit_bias": {"1024": 1}}, "logit_bias"),
    ({"logit_bias": {"water": 1}}, "logit_bias"),
    ({"logit_bias": {"3": 101}}, "logit_bias"),
    ({"priority": "urgent"}, "priority"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": "soon"}, "timeout"),
    ({"n": 0}, "n"),
    ({"best_of": 4}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": "perhaps"}, "stream"),
    ({"model": None}, "model"),
]
WRONG_PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 7}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [1024]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": ["one", "two"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
]
WRONG_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "water"}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "well", "content": "b"}]}, "messages.1.role"),
    ({"messages": [{"content": "a"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
]


def named(wrong: list[tuple[dict[str, Any], str]]) -> list[Any]:
    return [pytest.param(fields, param, id=json.dumps(fields)[:60]) for fields, param in wrong]


@pytest.mark.parametrize(("fields", "param"), named(WRONG_SAMPLING + WRONG_PROMPTS))
def test_a_wrong_field_of_a_completion_is_named(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    error = error_of(http.post("/v1/completions", json=a_completion(**fields)), 400)

    assert error["param"] is not None
    assert error["param"].partition(".")[0] == param


@pytest.mark.parametrize(("fields", "param"), named(WRONG_SAMPLING + WRONG_CHATS))
def test_a_wrong_field_of_a_chat_is_named(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    error = error_of(http.post("/v1/chat/completions", json=a_chat(**fields)), 400)

    assert error["param"] is not None
    assert error["param"] == param or error["param"].startswith(f"{param}.")


@pytest.mark.parametrize(
    ("header", "value"), [("x-priority", "urgent"), ("x-request-timeout-seconds", "0"), ("x-session-id", "s" * 129)]
)
@pytest.mark.parametrize(("path", "body"), [("completions", a_completion()), ("chat/completions", a_chat())])
def test_a_wrong_header_is_named(http: httpx.Client, path: str, body: dict[str, Any], header: str, value: str) -> None:
    error = error_of(http.post(f"/v1/{path}", json=body, headers={header: value}), 400)

    assert (error["param"], error["code"]) == (header, "invalid_value")


@pytest.mark.parametrize("priority", ["critical", "sheddable", -1, 1])
def test_every_class_is_served_by_an_engine_that_does_not_order_by_it(http: httpx.Client, priority: object) -> None:
    assert http.post("/v1/completions", json=a_completion(priority=priority)).status_code == 200


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(http: httpx.Client, missing: str) -> None:
    body = a_completion()
    del body[missing]

    error = error_of(http.post("/v1/completions", json=body), 400)

    assert error["param"] == missing
    assert error["code"] == "missing_required_parameter"


def test_a_body_that_is_too_long_is_refused(http: httpx.Client) -> None:
    body = a_completion(prompt="a" * MAX_BODY_BYTES)

    assert error_of(http.post("/v1/completions", json=body), 413)["code"] == "body_too_long"


def test_a_body_that_is_too_long_is_refused_also_without_a_declared_length(http: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(20):
            yield b"a" * (MAX_BODY_BYTES // 10)

    assert error_of(http.post("/v1/completions", content=parts()), 413)["code"] == "body_too_long"


def test_a_compressed_body_is_refused_and_not_misread(http: httpx.Client) -> None:
    packed = gzip.compress(json.dumps(a_completion()).encode())

    error_of(http.post("/v1/completions", content=packed, headers={"content-encoding": "gzip"}), 400)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/completions"), ("DELETE", "/v1/chat/completions"), ("POST", "/v1/models")]
)
def test_the_wrong_method_is_told_the_right_one(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path)

    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"]


@pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/v2/completions"])
def test_an_unknown_path_is_not_found(http: httpx.Client, path: str) -> None:
    assert error_of(http.get(path), 404)["code"] == "not_found"


def test_the_server_goes_on_after_errors(http: httpx.Client) -> None:
    error_of(http.post("/v1/completions", content=b"{"), 400)

    assert http.post("/v1/completions", json=a_completion()).status_code == 200


def test_another_try_of_a_clients_is_counted(live: Live) -> None:
    """By what OpenAI's library says, and by a key that comes again."""
    before = {told_by: live.metric("spillway_client_retries_total", told_by=told_by) for told_by in ("header", "key")}
    for headers in ({"idempotency-key": "k-1"}, {"idempotency-key": "k-1"}, {"x-stainless-retry-count": "1"}):
        assert httpx.post(f"{live.url}/v1/completions", json=a_completion(), headers=headers).status_code == 200

    for told_by, num_before in before.items():
        assert live.metric("spillway_client_retries_total", told_by=told_by) == num_before + 1

"""Every error of the API in OpenAI's shape, with the field at fault: routes and service in this process.

``test_api_operations`` sends a few of them through Serve.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.deployments.api_errors import a_chat, a_completion, error_of
from tests.deployments.gateway_in_process import CONTEXT_TOKENS, gateway_in_process

MAX_BODY_BYTES = 100_000
POSTS = ("/v1/completions", "/v1/chat/completions", "/tokenize")
NOT_JSON = (b"", b"{", b'{"model": }', b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 5000)
NO_OBJECT = (b"null", b"[]", b"7", b'"text"')


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with gateway_in_process(max_body_bytes=MAX_BODY_BYTES) as client:
        yield client


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_no_json_object_is_a_bad_request(http: httpx.Client, path: str) -> None:
    codes = [error_of(http.post(path, content=content), 400)["code"] for content in NOT_JSON]

    assert codes == ["invalid_json"] * len(NOT_JSON)
    for content in NO_OBJECT:
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


def params_named(http: httpx.Client, path: str, bodies: list[dict[str, Any]]) -> list[str]:
    """The fields that the errors name, without their places in them."""
    errors = [error_of(http.post(path, json=body), 400) for body in bodies]
    return [str(error["param"]) for error in errors]


def test_a_wrong_field_of_a_completion_is_named(http: httpx.Client) -> None:
    wrong = WRONG_SAMPLING + WRONG_PROMPTS

    named = params_named(http, "/v1/completions", [a_completion(**fields) for fields, _ in wrong])

    said = [(fields, param.partition(".")[0]) for (fields, _), param in zip(wrong, named, strict=True)]
    assert said == wrong


def test_a_wrong_field_of_a_chat_is_named(http: httpx.Client) -> None:
    wrong = WRONG_SAMPLING + WRONG_CHATS

    named = params_named(http, "/v1/chat/completions", [a_chat(**fields) for fields, _ in wrong])

    for (fields, param), found in zip(wrong, named, strict=True):
        assert found == param or found.startswith(f"{param}."), fields


@pytest.mark.parametrize(
    ("header", "value"), [("x-priority", "urgent"), ("x-request-timeout-seconds", "0"), ("x-session-id", "s" * 129)]
)
@pytest.mark.parametrize(("path", "body"), [("completions", a_completion()), ("chat/completions", a_chat())])
def test_a_wrong_header_is_named(http: httpx.Client, path: str, body: dict[str, Any], header: str, value: str) -> None:
    error = error_of(http.post(f"/v1/{path}", json=body, headers={header: value}), 400)

    assert (error["param"], error["code"]) == (header, "invalid_value")


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(http: httpx.Client, missing: str) -> None:
    body = a_completion()
    del body[missing]

    error = error_of(http.post("/v1/completions", json=body), 400)

    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}])
def test_tokenize_wants_either_a_prompt_or_messages(http: httpx.Client, body: dict[str, Any]) -> None:
    assert error_of(http.post("/tokenize", json=body), 400)["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "param"),
    [
        (CONTEXT_TOKENS, 1, "prompt"),
        (CONTEXT_TOKENS + 808, 5, "prompt"),
        (CONTEXT_TOKENS - 1, 2, "max_tokens"),
        (10, CONTEXT_TOKENS - 9, "max_tokens"),
    ],
)
def test_a_request_over_the_context_is_a_bad_request_with_a_code(
    http: httpx.Client, prompt_tokens: int, max_tokens: int, param: str
) -> None:
    body = a_completion(prompt=[9] * prompt_tokens, max_tokens=max_tokens)

    error = error_of(http.post("/v1/completions", json=body), 400)

    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_a_model_that_is_not_served_is_not_found(http: httpx.Client) -> None:
    answers = [
        http.post("/v1/completions", json=a_completion(model="gpt-99")),
        http.post("/v1/chat/completions", json=a_chat(model="gpt-99")),
        http.post("/tokenize", json={"model": "gpt-99", "prompt": "water"}),
        http.get("/v1/models/nobody/nothing"),
    ]

    errors = [error_of(answer, 404) for answer in answers]

    assert {(error["code"], error["param"]) for error in errors} == {("model_not_found", "model")}


def test_a_body_that_is_too_long_is_refused(http: httpx.Client) -> None:
    body = a_completion(prompt="a" * MAX_BODY_BYTES)

    assert error_of(http.post("/v1/completions", json=body), 413)["code"] == "body_too_long"


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


def test_the_schema_describes_every_endpoint(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]

    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/metrics"} <= set(paths)
    assert "requestBody" in paths["/v1/completions"]["post"]


def test_the_server_goes_on_after_errors(http: httpx.Client) -> None:
    error_of(http.post("/v1/completions", content=b"{"), 400)

    assert http.post("/v1/completions", json=a_completion()).status_code == 200

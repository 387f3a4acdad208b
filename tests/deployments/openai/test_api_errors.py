"""Every error of the API in OpenAI's shape, with the field at fault: routes and service in this process.

``test_api_operations`` sends a few of them through Serve.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.deployments.api_errors import a_chat, a_completion, error_of
from tests.deployments.gateway_in_process import CONTEXT_TOKENS, gateway_in_process
from tests.tables import for_each

MAX_BODY_BYTES = 100_000
POSTS = ("/v1/completions", "/v1/chat/completions", "/tokenize")
NOT_JSON = (b"", b"{", b'{"model": }', b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 5000)
NO_OBJECT = (b"null", b"[]", b"7", b'"text"')


@pytest.fixture(scope="module", params=[True, False], ids=["hot_routes", "routes"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with gateway_in_process(is_hot=request.param, max_body_bytes=MAX_BODY_BYTES) as client:
        yield client


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_no_json_object_is_a_bad_request(http: httpx.Client, path: str) -> None:
    codes = [error_of(http.post(path, content=content), 400)["code"] for content in NOT_JSON]
    assert codes == ["invalid_json"] * len(NOT_JSON)
    for content in NO_OBJECT:
        error_of(http.post(path, content=content), 400)


WRONG_SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": ["a", 7]}, "stop"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"stop_token_ids": [1024]}, "stop_token_ids"),
    ({"logit_bias": {"1024": 1}}, "logit_bias"),
    ({"priority": "urgent"}, "priority"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"timeout": 0}, "timeout"),
    ({"best_of": 4}, "best_of"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"model": None}, "model"),
]
"""Of each kind of mistake one; ``test_openai_requests`` has them all."""
PROMPTS: list[Any] = [7, "", [], [[]], [1.5], [1024], [-1], None, ["one", "two"], [[1], [2]]]
WRONG_PROMPTS: list[tuple[dict[str, Any], str]] = [
    *(({"prompt": prompt}, "prompt") for prompt in PROMPTS),
    ({"logprobs": 21}, "logprobs"),
    ({"echo": True}, "echo"),
]
WRONG_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "well", "content": "b"}]}, "messages.1.role"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
]


@pytest.mark.parametrize(
    ("path", "body_with", "wrong"),
    [
        ("/v1/completions", a_completion, WRONG_SAMPLING + WRONG_PROMPTS),
        ("/v1/chat/completions", a_chat, WRONG_SAMPLING + WRONG_CHATS),
        (
            "/tokenize",
            dict,
            [({}, "prompt"), ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt")],
        ),
    ],
)
def test_a_wrong_field_is_named(
    http: httpx.Client, path: str, body_with: Callable[..., dict[str, Any]], wrong: list[tuple[dict[str, Any], str]]
) -> None:
    for fields, param in wrong:
        found = error_of(http.post(path, json=body_with(**fields)), 400)["param"]
        assert found == param or found.startswith(f"{param}."), fields


def test_a_missing_field_is_named(http: httpx.Client) -> None:
    for missing in ("model", "prompt"):
        body = {name: value for name, value in a_completion().items() if name != missing}
        error = error_of(http.post("/v1/completions", json=body), 400)
        assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


@pytest.mark.parametrize(
    ("header", "value"), [("x-priority", "urgent"), ("x-request-timeout-seconds", "0"), ("x-session-id", "s" * 129)]
)
@pytest.mark.parametrize(("path", "body"), [("completions", a_completion()), ("chat/completions", a_chat())])
def test_a_wrong_header_is_named(http: httpx.Client, path: str, body: dict[str, Any], header: str, value: str) -> None:
    error = error_of(http.post(f"/v1/{path}", json=body, headers={header: value}), 400)
    assert (error["param"], error["code"]) == (header, "invalid_value")


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


@for_each(
    ("first", "again", "is_refused"),
    [
        ({"idempotency-key": "k"}, {"idempotency-key": "k"}, True),
        ({"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "1"}, True),
        ({}, {}, False),
        ({}, {"x-stainless-retry-count": "one"}, False),
    ],
)
def test_a_retry_of_what_is_over_is_refused_for_good(
    first: dict[str, str], again: dict[str, str], is_refused: bool
) -> None:
    """The same body after its deadline; nobody's word for it is nobody's retry."""
    late = {"x-request-timeout-seconds": "0.01"}
    with gateway_in_process(num_silent=1) as http:
        lost = http.post("/v1/completions", json=a_completion(), headers=first | late)
        other = http.post("/v1/completions", json=a_completion(max_tokens=1), headers=again)
        answer = http.post("/v1/completions", json=a_completion(), headers=again)

    assert (lost.status_code, lost.headers["x-should-retry"]) == (504, "false")
    assert other.status_code == (429 if "idempotency-key" in again else 200)
    assert answer.status_code == (429 if is_refused else 200)
    assert (answer.headers.get("x-should-retry") == "false") is is_refused
    assert ("retry-after" in answer.headers) is is_refused

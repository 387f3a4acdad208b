"""Requests that are right but for what a test makes wrong of them, and OpenAI's shape of an error."""

from typing import Any

import httpx

MODEL = "tiny-llama"


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

import json
import math
from typing import Any

from fastapi import Request

from deployments.openai.errors import VERDICTS, ApiError, error_of, invalid, method_not_allowed, not_found, to_response
from policies import Reason
from policies.decisions import LOAD_REASONS
from routing import Outcome, OutcomeKind
from tests.tables import for_each

STATUSES = {
    Reason.ADMISSION_REJECTED: 429,
    Reason.QUEUE_FULL: 429,
    Reason.KV_FULL: 429,
    Reason.QUOTA_EXCEEDED: 429,
    Reason.DEADLINE_UNREACHABLE: 429,
    Reason.SHED: 429,
    Reason.NO_REPLICA_AVAILABLE: 503,
    Reason.DEADLINE_EXCEEDED: 504,
    Reason.REPLICA_LOST: 503,
    Reason.KV_TRANSFER_FAILED: 503,
    Reason.ENGINE_ERROR: 500,
    Reason.INVALID_REQUEST: 400,
    Reason.CLIENT_GONE: 499,
}

KINDS = {400: "invalid_request_error", 429: "rate_limit_error", 499: "invalid_request_error"}


def test_what_is_refused_for_the_load_alone_is_a_429_and_everything_else_is_not() -> None:
    assert {reason for reason, status in STATUSES.items() if status == 429} == LOAD_REASONS


def refused(reason: Reason, retry_after_s: float = 7.0) -> Outcome:
    return Outcome(kind=OutcomeKind.REFUSED, reason=reason, retry_after_s=retry_after_s)


def body_of(error: ApiError) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(error.body())
    return body


def a_request(method: str, path: str) -> Request:
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "server": ("h", 80)}
    return Request(scope)


def test_there_is_a_verdict_for_every_reason_and_no_other() -> None:
    assert set(VERDICTS) == set(STATUSES) == set(Reason)


@for_each("reason", Reason)
def test_every_reason_is_the_code_and_has_its_status_its_type_and_when_to_come_back(reason: Reason) -> None:
    error, status = error_of(refused(reason)), STATUSES[reason]

    assert (error.status, error.code) == (status, reason.value)
    assert error.message
    assert body_of(error)["error"]["type"] == KINDS.get(status, "server_error"), "which says whose fault it is"
    headers = error.response().headers
    assert headers["x-spillway-reason"] == reason.value
    assert headers.get("retry-after") == ("7" if status in (429, 503) else None), "where that makes sense"


@for_each(
    ("seconds", "header"),
    [(0.0, "1"), (0.2, "1"), (1.01, "2"), (2.0, "2"), (59.6, "60"), (1e12, "3600"), (math.inf, "3600")],
)
def test_retry_after_is_a_whole_number_of_seconds_and_never_nothing(seconds: float, header: str) -> None:
    assert error_of(refused(Reason.SHED, seconds)).response().headers["retry-after"] == header


def test_an_engines_own_words_come_before_ours() -> None:
    error = error_of(refused(Reason.INVALID_REQUEST), "prompt is too long", "prompt")
    assert (error.message, error.param) == ("prompt is too long", "prompt")


def test_an_outcome_without_a_reason_is_the_engines_fault() -> None:
    assert error_of(Outcome(kind=OutcomeKind.FAILED)).code == "engine_error"


def test_the_body_has_the_shape_that_openais_clients_read() -> None:
    assert body_of(invalid("n must be 1", "n", "unsupported_value")) == {
        "error": {"message": "n must be 1", "type": "invalid_request_error", "param": "n", "code": "unsupported_value"}
    }
    assert body_of(error_of(refused(Reason.SHED)))["error"]["param"] is None, "where no field is at fault"


async def test_the_response_carries_status_type_and_body() -> None:
    error = invalid("no")
    response = await to_response(a_request("POST", "/"), error)
    assert (response.status_code, response.media_type, response.body) == (400, "application/json", error.body())
    assert "retry-after" not in response.headers


async def test_an_unknown_path_is_named() -> None:
    response = await not_found(a_request("GET", "/v2/nothing"), Exception())
    assert response.status_code == 404
    assert json.loads(bytes(response.body))["error"]["message"] == "there is nothing at /v2/nothing"


async def test_a_wrong_method_is_named_and_the_right_ones_too() -> None:
    error = ApiError(405, "", "", headers={"allow": "POST"})
    response = await method_not_allowed(a_request("GET", "/v1/completions"), error)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert json.loads(bytes(response.body))["error"]["message"] == "/v1/completions does not take GET"

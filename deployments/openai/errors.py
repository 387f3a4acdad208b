"""Errors as OpenAI's clients expect them: a JSON body with message, type, param and code, and the right status."""

import math
from dataclasses import dataclass, field

import msgspec
from fastapi import Request, Response

from policies.decisions import Reason
from routing.request.effects import Outcome

MAX_RETRY_AFTER_S = 3600
"""Nobody knows what will be in more than an hour; a line that hardly moves would have clients wait for years."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response and of an SSE error event."""

    error: ErrorDetail


@dataclass(slots=True, eq=False)
class ApiError(Exception):
    """An error with its place in HTTP.

    Args:
        status: HTTP status.
        message: One sentence that says what to do about it.
        code: Machine-readable: a :class:`policies.decisions.Reason` or an OpenAI code.
        param: The request field at fault.
        retry_after_s: When to try again, where that makes sense.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """OpenAI's error type for the status."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.message, self.kind, self.param, self.code)))

    def response(self, body: bytes = b"") -> Response:
        """The whole response, with a body of another shape where one is given."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["retry-after"] = retry_after(self.retry_after_s)
        return Response(body or self.body(), status_code=self.status, media_type="application/json", headers=headers)


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""What Anthropic's clients call the statuses; the others are ``api_error``."""


def anthropic_body(error: ApiError) -> bytes:
    """The JSON body of an error as Anthropic's clients expect it."""
    kind = ANTHROPIC_TYPES.get(error.status, "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})


def retry_after(seconds: float) -> str:
    """The header's value: whole seconds, rounded up, because who comes back early is refused again."""
    return str(math.ceil(min(max(1.0, seconds), MAX_RETRY_AFTER_S)))


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400 for the client's mistake."""
    return ApiError(400, message, code, param)


NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients heed it: whoever asks again is given the same answer."""

VERDICTS: dict[Reason, tuple[int, str]] = {
    Reason.ADMISSION_REJECTED: (429, "the deployment has no room for this request now; try again later"),
    Reason.QUEUE_FULL: (429, "too many requests wait before this one; try again later"),
    Reason.KV_FULL: (429, "too little KV cache is left for this request; try again later"),
    Reason.QUOTA_EXCEEDED: (429, "the tenant's quota is used up for now; try again later"),
    Reason.DEADLINE_UNREACHABLE: (429, "this request would not be answered in time now; try again later"),
    Reason.SHED: (429, "the deployment is overloaded and gave this request up; try again later"),
    Reason.NO_REPLICA_AVAILABLE: (503, "no replica can take this request now; try again later"),
    Reason.DEADLINE_EXCEEDED: (504, "the request took longer than it is allowed to"),
    Reason.REPLICA_LOST: (503, "the engine that served this request was lost; try again"),
    Reason.KV_TRANSFER_FAILED: (503, "the prompt's KV blocks were lost on their way between engines; try again"),
    Reason.ENGINE_ERROR: (500, "the engine failed on this request"),
    Reason.INVALID_REQUEST: (400, "the engine can't run this request"),
    Reason.CLIENT_GONE: (499, "the client closed the connection"),
}
"""Status and sentence of every reason."""


def error_of(outcome: Outcome, message: str | None = None, param: str | None = None) -> ApiError:
    """The error that tells a client about an outcome other than completion.

    Args:
        outcome: Refused or failed.
        message: Says more than the reason's own sentence, where the engine did.
        param: The request field at fault.
    """
    reason = outcome.reason or Reason.ENGINE_ERROR
    status, sentence = VERDICTS[reason]
    retries = status in (429, 503)
    return ApiError(
        status,
        message or sentence,
        reason.value,
        param,
        retry_after_s=outcome.retry_after_s or 1.0 if retries else None,
        headers={"x-spillway-reason": reason.value, **({} if outcome.may_retry else NO_RETRY)},
    )


async def to_response(_: Request, error: Exception) -> Response:
    """FastAPI's handler for :class:`ApiError`."""
    assert isinstance(error, ApiError)
    return error.response()


async def not_found(request: Request, _: Exception) -> Response:
    """FastAPI's handler for an unknown path."""
    return ApiError(404, f"there is nothing at {request.url.path}", "not_found").response()


async def internal_error(_: Request, __: Exception) -> Response:
    """FastAPI's handler for a bug of ours; the traceback goes to the log."""
    return ApiError(500, "something went wrong inside the gateway", "internal_error").response()


async def method_not_allowed(request: Request, error: Exception) -> Response:
    """FastAPI's handler for the wrong method."""
    headers = dict(getattr(error, "headers", None) or {})
    message = f"{request.url.path} does not take {request.method}"
    return ApiError(405, message, "method_not_allowed", headers=headers).response()

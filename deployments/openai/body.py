"""Reads a request's body within bounds, and says in OpenAI's shape what is wrong with it."""

from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError

from deployments.openai.errors import ApiError, invalid

DIGEST_BYTES = 8
Model = TypeVar("Model", bound=BaseModel)


class Unserved(ValueError):
    """A field that is known and not served; carries its name through pydantic's machinery."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


async def read_body(request: Request, model: type[Model], max_bytes: int) -> Model:
    """The body as a validated ``model``.

    Raises:
        ApiError: As :func:`read_json` and :func:`validated` do.
    """
    return validated(model, (await read_json(request, max_bytes)).fields)


class JsonBody(NamedTuple):
    """A body that has been read.

    Args:
        fields: What it says.
        digest: A hash of its bytes: what a client's retries have in common.
        num_bytes: How long it is.
    """

    fields: Any
    digest: str
    num_bytes: int


async def read_json(request: Request, max_bytes: int) -> JsonBody:
    """What the body says.

    Raises:
        ApiError: 413 for a body over ``max_bytes``, 400 for one that is no JSON.
    """
    raw = await _read(request, max_bytes)
    try:
        fields: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    return JsonBody(fields, blake2b(raw, digest_size=DIGEST_BYTES).hexdigest(), len(raw))


def validated(model: type[Model], fields: Any) -> Model:
    """A body's fields as a ``model``.

    Raises:
        ApiError: 400 for fields that are not those that are asked for.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise api_error_of(error) from error


async def _read(request: Request, max_bytes: int) -> bytes:
    """Stops reading as soon as the body is too long, whatever its headers say."""
    too_long = ApiError(413, f"the body is longer than {max_bytes} bytes", "body_too_long")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_long
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > max_bytes:
            raise too_long
        parts.append(part)
    return b"".join(parts)


async def until_gone(request: Request) -> None:
    """Waits until the client has closed the connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def api_error_of(error: ValidationError) -> ApiError:
    """The first thing that pydantic found, in OpenAI's shape, with the field named."""
    errors = error.errors(include_url=False, include_input=False)
    first = next((each for each in errors if each["type"] != "missing"), errors[0])  # of a union's other forms
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Unserved):
        return invalid(str(cause), cause.field, "unsupported_value")
    path = [str(part) for part in first["loc"] if not (isinstance(part, str) and not part.isidentifier())]
    param = ".".join(_without_union_branches(path)) or None
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return invalid(f"{param or 'body'}: {first['msg']}", param, code)


def _without_union_branches(path: list[str]) -> list[str]:
    """Pydantic says which branch of a union it tried; the client knows the field and the index only."""
    return [part for part in path if not part[:1].isupper() and part not in ("str", "int", "bool", "float")]

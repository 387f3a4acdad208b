"""Reads a request's body within bounds."""

from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError

from deployments.openai.errors import ApiError, invalid
from deployments.openai.validation import api_error_of

DIGEST_BYTES = 8
Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model], max_bytes: int) -> Model:
    """The body as a validated ``model``.

    Raises:
        ApiError: As :func:`read_json` and :func:`validated` do.
    """
    return validated(model, (await read_json(request, max_bytes))[0])


async def read_json(request: Request, max_bytes: int) -> tuple[Any, str]:
    """What the body says, and a hash of its bytes: what a client's retries have in common.

    Raises:
        ApiError: 413 for a body over ``max_bytes``, 400 for one that is no JSON.
    """
    raw = await _read(request, max_bytes)
    try:
        fields: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    return fields, blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()


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

"""A request's body: read within bounds, and what its JSON says."""

import math
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from fastapi import Request

from deployments.openai.errors import ApiError, invalid

DIGEST_BYTES = 8
PLAIN_BYTES = 64 * 1024
"""What a body of so many bytes says is read whatever it is: in 10 ms at the most."""
MOST_VALUES = 1 << 20
"""In fields of longer bodies: what is read in 50 ms, and as many token ids as any model's context has."""
DEAR_VALUES = 8
"""A text, a list, an object or a fraction takes as long to read as so many whole numbers."""


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
        ApiError: 413 for a body over ``max_bytes``, 400 for one that is no JSON, or has more values than are read.
    """
    raw = await _read(request, max_bytes)
    try:
        fields = _decode(raw) if len(raw) <= PLAIN_BYTES else _decode_long(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    return JsonBody(fields, blake2b(raw, digest_size=DIGEST_BYTES).hexdigest(), len(raw))


def declared_bytes(request: Request, max_bytes: int) -> int:
    """How long a request says that its body is, as far as it would be read; 0 where it does not say."""
    declared = request.headers.get("content-length", "")
    return min(int(declared), max_bytes) if declared.isascii() and declared.isdigit() else 0


def _finite(fraction: str) -> float:
    if math.isfinite(value := float(fraction)):
        return value
    raise ValueError(f"{fraction[:32]} is out of range")


_decode = msgspec.json.Decoder(float_hook=_finite).decode
"""Python reads any fraction in much the same time; msgspec takes a hundred times as long for some."""
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _decode_long(raw: bytes) -> dict[str, Any]:
    """Reads texts, whatever they are, and of the rest what has not too many values.

    Raises:
        ApiError: 400, which field has too many.
    """
    try:
        split = _split(raw)
    except msgspec.ValidationError as error:
        raise invalid(f"body: {error}") from error
    fields: dict[str, Any] = {}
    left = MOST_VALUES
    for name, said in split.items():
        its = bytes(said)
        if not its.startswith(b'"') and (left := left - _num_values(its)) < 0:
            weights = f"a text, a list, an object or a fraction counts as {DEAR_VALUES}"
            raise invalid(f"{name[:64]} has more values than are read: {MOST_VALUES:,}; {weights}", name[:64])
        fields[name] = _decode(its)
    return fields


def _num_values(its: bytes) -> int:
    """What is in a field: at the least one for each whole number, and more for what takes longer to read."""
    if b"\\" in its:
        its = its.replace(b"\\\\", b"").replace(b'\\"', b"")
    in_texts = DEAR_VALUES * (its.count(b'"') // 2)
    if in_texts > MOST_VALUES:
        return in_texts
    between = b"".join(its.split(b'"')[::2])
    num_dear = len(between) - len(between.translate(None, b"[{.eE"))
    return 1 + between.count(b",") + in_texts + DEAR_VALUES * num_dear


async def _read(request: Request, max_bytes: int) -> bytes:
    """Stops reading as soon as the body is too long, whatever its headers say."""
    too_long = ApiError(413, f"the body is longer than {max_bytes} bytes", "body_too_long")
    if declared_bytes(request, max_bytes + 1) > max_bytes:
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

"""A request's body: read within bounds, and what its JSON says."""

import asyncio
import math
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
from fastapi import Request

from deployments.openai.errors import ApiError, invalid

DIGEST_BYTES = 8
MOST_DIGITS = 18
"""Of a length that is no nonsense; Python refuses to read thousands."""
FOR_EVER_S = 1e9
PLAIN_BYTES = 64 * 1024
"""What a body of so many bytes says is read whatever it is: in 10 ms at the most."""
MOST_VALUES = 1 << 20
"""Of longer bodies: what is read in 50 ms, and as many token ids as any model's context has."""
PIECE_BYTES = 1 << 18
"""Values are counted in as many bytes at a time: of a body that is all values the first pieces have too many."""
HASHED_AT_ONCE_BYTES = 1 << 18
"""In 0.3 ms."""
DEAR_VALUES = 8
"""A text, a list, an object or a fraction takes as long to read as so many whole numbers."""


Came = Callable[[int], None]
"""Is told of bytes that come."""


def uncounted(num_bytes: int) -> None:
    """Of a body whose bytes are counted already, or by nobody."""


class JsonBody:
    """A body that has been read.

    Args:
        fields: What it says.
        raw: Its bytes.
    """

    __slots__ = ("_digest", "_raw", "fields")

    def __init__(self, fields: Any, raw: bytes) -> None:
        self.fields = fields
        self._raw = raw
        self._digest = ""

    async def digest(self) -> str:
        """A hash of its bytes: what a client's retries have in common.

        It is made when it is asked for the first time, since a body that is refused needs none: 8 MiB take 10 ms.
        That of a long one is made in a thread, without Python's lock. Then the bytes are let go of.
        """
        if not self._digest:
            raw = self._raw
            self._digest = _hash(raw) if len(raw) <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(_hash, raw)
            self.let_go()
        return self._digest

    def let_go(self) -> None:
        """Nobody asks for its hash any more who has not done so; its bytes need no memory."""
        self._raw = b""


async def read_json(
    request: Request, max_bytes: int, came: Came = uncounted, *, limit_s: float = FOR_EVER_S
) -> JsonBody:
    """What the body says.

    Args:
        request: Whose.
        max_bytes: That it may have.
        came: Is told of each part of it.
        limit_s: How long it may take to come.

    Raises:
        ApiError: 413 for a body over ``max_bytes``, 408 for one that takes too long, 400 for one that is no JSON, or
            has more values than are read.
    """
    try:
        async with asyncio.timeout(limit_s):
            raw = await _read(request, max_bytes, came)
    except TimeoutError as error:
        raise ApiError(408, f"the body has not come within {limit_s:g} s", "request_too_slow") from error
    try:
        fields = _decode(raw) if len(raw) <= PLAIN_BYTES else _decode_long(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    return JsonBody(fields, raw)


def declared_bytes(request: Request, max_bytes: int) -> int:
    """How long a request says that its body is, as far as it would be read; 0 where it does not say."""
    declared = request.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdigit()):
        return 0
    digits = declared.lstrip("0")
    return max_bytes if len(digits) > MOST_DIGITS else min(int(digits or "0"), max_bytes)


def _finite(fraction: str) -> float:
    if math.isfinite(value := float(fraction)):
        return value
    raise ValueError(f"{fraction[:32]} is out of range")


_decode = msgspec.json.Decoder(float_hook=_finite).decode
"""Python reads any fraction in much the same time; msgspec takes a hundred times as long for some."""


def _decode_long(raw: bytes) -> Any:
    """Reads what has not too many values; how long its texts are is another matter.

    Raises:
        ApiError: 400, it has.
    """
    if _num_values(raw) > MOST_VALUES:
        weights = f"a text, a name, a list, an object or a fraction counts as {DEAR_VALUES}"
        raise invalid(f"the body has more values than are read: {MOST_VALUES:,}; {weights}")
    return _decode(raw)


def _without_escapes(its: bytes) -> bytes:
    """The same without those backslashes that a quotation mark could follow, or one that ends no text."""
    return its.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in its else its


def _num_values(its: bytes) -> int:
    """What a body says: at the least one for each whole number, and more for what takes longer to read; of more than
    there may be, some.
    """
    its = _without_escapes(its)
    number, is_in_text = 1, False
    for start in range(0, len(its), PIECE_BYTES):
        parts = its[start : start + PIECE_BYTES].split(b'"')
        between = b"".join(parts[is_in_text::2])
        num_dear = len(between) - len(between.translate(None, b"[{.eE"))
        number += between.count(b",") + DEAR_VALUES * num_dear + DEAR_VALUES // 2 * (len(parts) - 1)
        if number > MOST_VALUES:
            break
        is_in_text ^= len(parts) % 2 == 0
    return number


def _hash(raw: bytes) -> str:
    return blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()


async def _read(request: Request, max_bytes: int, came: Came) -> bytes:
    """A body; stops reading as soon as it is too long, whatever its headers say."""
    too_long = ApiError(413, f"the body is longer than {max_bytes} bytes", "body_too_long")
    if declared_bytes(request, max_bytes + 1) > max_bytes:
        raise too_long
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > max_bytes:
            raise too_long
        came(len(part))
        parts.append(part)
    return b"".join(parts)


async def until_gone(request: Request) -> None:
    """Waits until the client has closed the connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

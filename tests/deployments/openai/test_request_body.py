import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Request
from pydantic import BaseModel

from deployments.openai.body import read_body
from deployments.openai.errors import ApiError
from tests.tables import for_each

MAX_BYTES = 1000


class Order(BaseModel):
    """What is asked for."""

    dish: str
    number: int = 1


class Client:
    """Sends a body in parts, and counts how many were asked for."""

    def __init__(self, *parts: bytes, headers: dict[str, str] | None = None) -> None:
        self._parts = iter(parts)
        self._left = len(parts)
        self._headers = headers or {}
        self.num_read = 0

    @property
    def request(self) -> Request:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        self.num_read += 1
        self._left -= 1
        return {"type": "http.request", "body": next(self._parts), "more_body": self._left > 0}

    async def orders(self, max_bytes: int = MAX_BYTES) -> Order:
        return await read_body(self.request, Order, max_bytes)


async def refusal(client: Client, max_bytes: int = MAX_BYTES) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await client.orders(max_bytes)
    return caught.value


def cut(body: bytes, length: int) -> Iterator[bytes]:
    return (body[start : start + length] for start in range(0, len(body), length))


@for_each("length", [1, 7, 1000])
async def test_a_body_is_the_same_in_however_many_parts_it_comes(length: int) -> None:
    body = b'{"dish": "soup", "number": 2}'
    assert await Client(*cut(body, length)).orders() == Order(dish="soup", number=2)


async def test_a_body_of_exactly_the_allowed_length_is_read() -> None:
    body = json.dumps({"dish": "soup"}).encode()
    assert await Client(body).orders(max_bytes=len(body)) == Order(dish="soup")


async def test_a_body_that_says_it_is_too_long_is_refused_unread() -> None:
    client = Client(b"{}", headers={"content-length": str(MAX_BYTES + 1)})
    error = await refusal(client)
    assert (error.status, error.code) == (413, "body_too_long")
    assert str(MAX_BYTES) in error.message
    assert client.num_read == 0


@for_each("headers", [{}, {"content-length": "2"}, {"content-length": "many"}], ids=["no", "lie", "odd"])
async def test_a_body_that_turns_out_too_long_is_read_no_further(headers: dict[str, str]) -> None:
    client = Client(*[b" " * 400] * 10, headers=headers)
    error = await refusal(client)
    assert (error.status, error.code) == (413, "body_too_long")
    assert client.num_read == 3


@for_each(
    "body",
    [b"", b"{", b'{"dish": soup}', b'{"dish": "\xff"}', b'{"dish": "\\ud800"}', b'{"number": 1e999}', b"[" * 900],
    ids=["nothing", "half", "no_quotes", "no_utf8", "half_a_character", "too_big_a_number", "too_deep_to_end"],
)
async def test_what_is_not_json_is_the_clients_mistake(body: bytes) -> None:
    error = await refusal(Client(body))
    assert (error.status, error.code) == (400, "invalid_json")


async def test_json_that_is_nested_too_deeply_is_the_clients_mistake() -> None:
    depth = 100_000
    error = await refusal(Client(b'{"dish": ' + b"[" * depth + b"]" * depth + b"}"), max_bytes=1 << 20)
    assert (error.status, error.code) == (400, "invalid_json")


@for_each("body", [b"[]", b"null", b"7", b'"soup"'])
async def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    error = await refusal(Client(body))
    assert (error.status, error.param) == (400, None)
    assert error.message.startswith("body: ")


async def test_a_missing_field_is_named() -> None:
    error = await refusal(Client(b"{}"))
    assert (error.status, error.code, error.param) == (400, "missing_required_parameter", "dish")


async def test_a_wrong_field_is_named() -> None:
    error = await refusal(Client(b'{"dish": "soup", "number": "many"}'))
    assert (error.status, error.code, error.param) == (400, "invalid_value", "number")

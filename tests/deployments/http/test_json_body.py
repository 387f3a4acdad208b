import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from deployments.http import json_body
from deployments.http.json_body import MOST_VALUES, PLAIN_BYTES, declared_bytes, read_json
from deployments.openai.errors import ApiError
from deployments.openai.validation import validated
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
        return validated(Order, (await read_json(self.request, max_bytes)).fields)


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


# -- long bodies ------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


async def said_by(body: bytes) -> Any:
    return (await read_json(Client(body).request, max_bytes=1 << 24)).fields


@given(fields=st.dictionaries(st.text(), JSON, max_size=5))
async def test_a_long_body_says_what_it_would_say_if_it_were_short(fields: dict[str, Any]) -> None:
    said = json.dumps(fields, ensure_ascii=False).encode()
    assert await said_by(said) == await said_by(said + b" " * PLAIN_BYTES) == fields


def number_of_values(said: Any) -> int:
    if isinstance(said, dict):
        return 8 + sum(8 + number_of_values(each) for each in said.values())
    if isinstance(said, list):
        return 8 + sum(map(number_of_values, said))
    return 1 if said is None or isinstance(said, int) else 8


@given(said=JSON, indent=st.sampled_from([None, 1]))
async def test_what_is_in_texts_counts_for_nothing_and_all_else_for_what_it_is(said: Any, indent: int | None) -> None:
    written = json.dumps(said, indent=indent).encode()
    assert json_body._num_values(written) >= number_of_values(said) - 8


@for_each(
    "value",
    [b"1.2345678901234567e-300", b"[[[[[]]]]]", b"{}", b'"ab"', b'{"\\\\\\"": 1}', b"7"],
    ids=["fractions", "lists", "objects", "texts", "odd_keys", "numbers"],
)
async def test_a_long_body_of_too_many_values_is_refused_unread(value: bytes) -> None:
    number = MOST_VALUES if value == b"7" else MOST_VALUES // 8
    with pytest.raises(ApiError) as caught:
        await said_by(b'{"dish": "soup", "more": [' + b",".join([value] * (number + 1)) + b"]}")
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")
    assert "more values than are read" in caught.value.message


async def test_a_long_body_of_too_many_fields_is_refused_unread() -> None:
    fields = {"dish": "soup", **{f"field-{number:060}": number for number in range(MOST_VALUES // 8)}}
    with pytest.raises(ApiError, match="more values than are read"):
        await said_by(json.dumps(fields).encode())


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, never)
    with pytest.raises(ApiError, match=r"within 0\.01 s") as caught:
        await read_json(request, MAX_BYTES, limit_s=0.01)
    assert caught.value.status == 408


@for_each("length", ["9" * 5_000, "0" * 5_000 + "2", "1" * 19])
def test_a_length_of_thousands_of_digits_is_no_fault_of_the_servers(length: str) -> None:
    declared = declared_bytes(Client(b"", headers={"content-length": length}).request, MAX_BYTES)
    assert declared == (2 if length.endswith("2") else MAX_BYTES)


@for_each(
    "value", [json.dumps('a, "list": [[1.5, {}]]\\\n' * 100_000), json.dumps([7] * 600_000)], ids=["text", "token_ids"]
)
async def test_a_long_text_and_as_many_token_ids_as_models_take_are_read(value: str) -> None:
    assert await said_by(b'{"prompt": ' + value.encode() + b"}") == {"prompt": json.loads(value)}


@for_each("fraction", ["1e999", "-1e999"])
async def test_a_fraction_that_is_out_of_range_is_no_number(fraction: str) -> None:
    error = await refusal(Client(b'{"number": ' + fraction.encode() + b"}"))
    assert (error.status, error.code) == (400, "invalid_json")
    assert "out of range" in error.message


@for_each(("header", "num_bytes"), [("12", 12), ("5000", MAX_BYTES), ("many", 0), ("\u00b2", 0), ("-1", 0), ("", 0)])
def test_a_body_is_as_long_as_it_says_as_far_as_it_is_read(header: str, num_bytes: int) -> None:
    request = Request({"type": "http", "headers": [(b"content-length", header.encode("latin-1"))]})
    assert declared_bytes(request, MAX_BYTES) == num_bytes


@for_each("length", [1, 300_000])
async def test_a_bodys_hash_tells_it_from_others_and_its_bytes_are_let_go(length: int) -> None:
    body = b'"' + b"a" * length + b'"'
    same = [await read_json(Client(body).request, max_bytes=1 << 24) for _ in range(2)]
    other = await read_json(Client(body[:-2] + b'b"').request, max_bytes=1 << 24)

    assert await same[0].digest() == await same[0].digest() == await same[1].digest() != await other.digest()
    assert not any(each._raw for each in same)

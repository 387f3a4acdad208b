"""A request that is refused before it is whole: the rest of its body costs next to nothing, and is in nobody's way."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import Response

from deployments.http import hot_routes, own_port, request_pace
from deployments.http.direct_request import DirectRequest
from deployments.http.discarded_body import AT_ONCE_BYTES, NOTHING_DISCARDED
from deployments.http.hot_routes import RouteTable
from deployments.http.own_port import DISCARDED_BYTES, CountedConnection, OwnPort
from tests.deployments.listener.listeners import App, gateway, listening, new_address
from tests.waiting import until_here

LONG_BYTES = 8 << 20
RESET = b"\1\0\0\0\0\0\0\0"
"""``SO_LINGER`` for no time."""
OK = b"HTTP/1.1 200"


class Client:
    """A connection that sends what it is told to, whole or in part."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, num_bytes: int, of_bytes: int | None = None, headers: bytes = b"") -> None:
        """A request's head, and so much of its body."""
        length = num_bytes if of_bytes is None else of_bytes
        self.writer.write(b"POST /refused HTTP/1.1\r\nhost: a\r\n%bcontent-length: %d\r\n\r\n" % (headers, length))
        await self.more(num_bytes)

    async def more(self, num_bytes: int) -> None:
        self.writer.write(b"x" * num_bytes)
        await self.writer.drain()

    async def answer(self) -> bytes:
        """The status line of the next answer, whose body has the length of a name."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head:
            await self.reader.readuntil(b"0\r\n\r\n")
        return head[: len(OK)]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Client, CountedConnection]]:
    """A client of a gateway that answers as soon as it has a request's head, and the gateway's end of it."""
    async with listening(new_address()) as address, gateway(App("a"), address) as port:
        client = Client(*await asyncio.open_connection(*address[:2]))
        try:
            await until_here(lambda: port._server.server_state.connections)
            yield client, its_connection(port)
        finally:
            client.writer.close()
        await until_here(lambda: port._acceptor._num_connections == 0)


def its_connection(port: OwnPort) -> CountedConnection:
    [connection] = port._server.server_state.connections
    return cast(CountedConnection, connection)


async def test_the_rest_of_a_long_body_does_not_come_into_the_process() -> None:
    async with connected() as (client, connection):
        await client.send(0, LONG_BYTES)
        assert await client.answer() == OK
        await client.more(LONG_BYTES)
        await client.send(1)
        assert await client.answer() == OK
        assert connection._body_bytes == 1
        assert connection._discarded is not NOTHING_DISCARDED


async def test_a_connection_with_the_rest_of_a_body_is_kept_as_long_as_any_other_afterwards() -> None:
    async with connected() as (client, connection):
        for first_bytes, more_bytes in ((0, LONG_BYTES), (1, DISCARDED_BYTES // 2)):
            await client.send(first_bytes, first_bytes + more_bytes)
            assert await client.answer() == OK
            await client.more(more_bytes // 2)
            await until_here(lambda: connection.timeout_keep_alive_task is None)
            await client.more(more_bytes - more_bytes // 2)
            await until_here(lambda: connection.timeout_keep_alive_task is not None)
            assert not connection._pace.is_waiting


async def test_a_client_that_goes_in_the_middle_leaves_nothing() -> None:
    async with connected() as (client, connection):
        await client.send(0, LONG_BYTES)
        assert await client.answer() == OK
        await client.more(LONG_BYTES // 2)
        client.writer.close()
        await until_here(connection.transport.is_closing)


@pytest.mark.parametrize("unread_bytes", [0, 1000, LONG_BYTES // 8])
async def test_a_client_that_resets_in_the_middle_leaves_nothing(unread_bytes: int) -> None:
    async with connected() as (client, connection):
        await client.send(0, LONG_BYTES)
        assert await client.answer() == OK
        own: socket.socket = client.writer.get_extra_info("socket")
        with socket.fromfd(own.fileno(), own.family, own.type) as connected_to:
            connected_to.setblocking(False)
            if unread_bytes:
                connected_to.send(b"x" * unread_bytes)
            connected_to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.writer.transport.abort()
        await until_here(connection.transport.is_closing)


async def test_a_rest_that_does_not_come_ends_the_connection_without_another_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (client, connection):
        await client.send(0, LONG_BYTES)
        assert await client.answer() == OK
        monkeypatch.setattr(request_pace, "GRACE_S", 0.0)
        connection._pace._look()
        assert await asyncio.wait_for(client.reader.read(), 20) == b""


@pytest.fixture
def may_refuse(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What is sent here is refused without a look at its body, once this is set, as it is."""

    async def refuse(_: DirectRequest) -> Response:
        await may.wait()
        return Response("no", 401)

    class Routes(RouteTable):
        def handler_of(self, *_: object) -> hot_routes.Handler:
            return refuse

    may = asyncio.Event()
    may.set()
    monkeypatch.setattr(hot_routes, "ROUTES", Routes())
    return may


@pytest.mark.parametrize("more_bytes", [LONG_BYTES, DISCARDED_BYTES // 2])
@pytest.mark.usefixtures("may_refuse")
async def test_a_client_that_wants_no_further_request_reads_the_answer_though_it_still_sends(more_bytes: int) -> None:
    async with connected() as (client, connection):
        await client.send(0, more_bytes, headers=b"connection: close\r\n")
        await until_here(lambda: connection.cycle is not None and connection.cycle.response_complete)
        await client.more(more_bytes)
        assert (await asyncio.wait_for(client.reader.read(), 20)).endswith(b"\r\n\r\nno")


@pytest.mark.usefixtures("may_refuse")
async def test_a_client_that_waits_to_be_told_to_send_a_body_is_not_waited_for() -> None:
    async with connected() as (client, _):
        await client.send(0, LONG_BYTES, headers=b"connection: close\r\nexpect: 100-continue\r\n")
        assert (await asyncio.wait_for(client.reader.read(), 20)).endswith(b"\r\n\r\nno")


@pytest.mark.usefixtures("may_refuse")
async def test_a_client_that_does_not_wait_to_be_told_has_one_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (client, connection):
        await client.send(1, LONG_BYTES, headers=b"expect: 100-continue\r\n")
        await until_here(lambda: connection.cycle is not None and connection.cycle.response_complete)
        monkeypatch.setattr(request_pace, "GRACE_S", 0.0)
        connection._pace._look()
        assert (await asyncio.wait_for(client.reader.read(), 20)).endswith(b"\r\n\r\nno")


async def test_a_gateway_that_ends_waits_little_for_a_body_that_nobody_wants(
    may_refuse: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_port, "FIRST_REQUEST_S", 0.01)
    async with connected() as (client, connection):
        may_refuse.clear()
        await client.send(0, LONG_BYTES)
        await until_here(lambda: connection.cycle is not None)
        connection.shutdown()
        assert not connection.transport.is_closing()
        may_refuse.set()
        assert (await asyncio.wait_for(client.reader.read(), 20)).endswith(b"\r\n\r\nno")


async def test_without_a_descriptor_left_the_parser_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    async with connected() as (client, connection):
        with monkeypatch.context() as patch:
            patch.setattr(socket, "fromfd", none_left)
            await client.send(0, LONG_BYTES)
            assert await client.answer() == OK
            await client.more(LONG_BYTES)
            await until_here(lambda: connection._is_whole)
        assert connection._discarded is NOTHING_DISCARDED
        await client.send(1)
        assert await client.answer() == OK


async def test_a_length_with_thousands_of_zeros_is_a_number() -> None:
    async with connected() as (client, connection):
        client.writer.write(b"POST / HTTP/1.1\r\nhost: a\r\nContent-Length: %b%d\r\n\r\n" % (b"0" * 5000, LONG_BYTES))
        assert await client.answer() == OK
        await client.more(LONG_BYTES)
        await until_here(lambda: connection._is_whole)
        assert connection._body_bytes < DISCARDED_BYTES


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(
        st.one_of(
            st.integers(0, 2 * DISCARDED_BYTES),
            st.integers(-2, 2).map(lambda near: DISCARDED_BYTES + near),
            st.integers(-2, 2).map(lambda near: AT_ONCE_BYTES + near),
        ),
        min_size=1,
        max_size=8,
    ),
    cut=st.integers(1, AT_ONCE_BYTES),
)
async def test_each_of_many_requests_has_its_answer_however_long_they_are_and_come_in_parts(
    lengths: list[int], cut: int
) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
    said = b"".join(head % length + b"x" * length for length in lengths)
    async with connected() as (client, _):

        async def say() -> None:
            for start in range(0, len(said), cut):
                client.writer.write(said[start : start + cut])
                await client.writer.drain()

        saying = asyncio.create_task(say())
        for _ in lengths:
            assert await asyncio.wait_for(client.answer(), 20) == OK
        await saying

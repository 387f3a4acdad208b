"""Gateways that take requests themselves: several at one port, and an end that waits for answers."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from deployments.http.own_port import Address, NoOwnPort, OwnPort
from engines.peer_port import free_port
from policies.errors import ConfigError
from tests.waiting import until_here

Scope = dict[str, Any]


class App:
    """Says who it is, when it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_answer = asyncio.Event()
        self.num_asked = 0

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.num_asked += 1
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode()})


def address(port: int) -> Address:
    return Address("127.0.0.1", port, 5)


async def test_gateways_of_one_node_share_a_port() -> None:
    apps, port = [App("a"), App("b")], free_port("127.0.0.1")
    ports = [OwnPort.open(app, address(port)) for app in apps]
    for app in apps:
        app.may_answer.set()

    async def ask() -> str:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://127.0.0.1:{port}/")).text

    said = {await ask() for _ in range(60)}
    for each in ports:
        await each.close(5.0)
    assert said == {"a", "b"}, "sixty connections all to one of two would be a miracle"


async def test_a_port_that_another_program_has_is_refused_by_name() -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    with pytest.raises(ConfigError, match=r"http_options\.port"):
        OwnPort.open(App("a"), address(taken.sockets[0].getsockname()[1]))
    taken.close()


async def test_the_end_waits_for_answers_under_way_and_takes_no_new_connections() -> None:
    app, port = App("a"), free_port("127.0.0.1")
    own = OwnPort.open(app, address(port))
    async with httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/"))
        await until_here(lambda: app.num_asked)
        closing = asyncio.create_task(own.close(5.0))
        await asyncio.sleep(0.3)
        assert not closing.done()
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient() as another:
                await another.get(f"http://127.0.0.1:{port}/")
        app.may_answer.set()
        assert (await asking).text == "a"
    await asyncio.wait_for(closing, 5)


async def test_an_answer_that_never_ends_does_not_keep_a_gateway_for_ever() -> None:
    app, port = App("a"), free_port("127.0.0.1")
    own = OwnPort.open(app, address(port))
    async with httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/"))
        await until_here(lambda: app.num_asked)
        await asyncio.wait_for(own.close(0.01), 5)
        asking.cancel()
        app.may_answer.set()
    with socket.socket() as other:  # with the number of the one that is closed, it may be
        other.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(lambda _, writer: writer.close(), sock=other)
        reader, writer = await asyncio.open_connection(*other.getsockname())
        assert await asyncio.wait_for(reader.read(), 5) == b"", "the event loop hears of the next socket's connections"
        writer.close()
        server.close()
    await NoOwnPort().close(0.0)

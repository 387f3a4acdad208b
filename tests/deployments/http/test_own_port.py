"""A gateway that takes requests itself: what it counts as under way, and an end that waits for answers."""

import asyncio
import socket

import httpx
import pytest

from deployments.http.client_connections import ClientConnections
from deployments.http.own_port import NoOwnPort, OwnPort
from policies.errors import ConfigError
from tests.deployments.listener.listeners import App, ask, gateway, listening, new_address
from tests.waiting import until_here


async def test_a_port_that_another_program_has_is_refused_by_name() -> None:
    address = new_address()
    taken = await asyncio.start_server(lambda *_: None, *address[:2])
    async with listening(address):
        with pytest.raises(ConfigError, match=r"http_options\.port: got \d+; .*already in use"):
            await OwnPort.open(App("a"), address, 5, lambda: None, ClientConnections())
    taken.close()


async def test_the_end_waits_for_answers_under_way_and_takes_no_new_connections() -> None:
    a, b = App("a", may_answer=False), App("b")
    async with listening(new_address()) as address, gateway(a, address) as ends:
        asking = asyncio.create_task(ask(address))
        await until_here(lambda: a.num_asked)
        async with gateway(b, address):
            closing = asyncio.create_task(ends.close(5.0))
            assert {(await ask(address)).text for _ in range(20)} == {"b"}
            assert not closing.done()
            a.may_answer.set()
            assert (await asking).text == "a"
            await asyncio.wait_for(closing, 5)


async def test_an_answer_that_never_ends_does_not_keep_a_gateway_for_ever() -> None:
    app = App("a", may_answer=False)
    async with listening(new_address()) as address, gateway(app, address) as ends:
        asking = asyncio.create_task(ask(address))
        await until_here(lambda: app.num_asked)
        await asyncio.wait_for(ends.close(0.01), 5)
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


async def test_requests_under_way_count_and_connections_without_one_do_not() -> None:
    apps = [App("a"), App("b")]
    async with (
        listening(new_address()) as address,
        gateway(apps[0], address),
        gateway(apps[1], address),
        httpx.AsyncClient() as client,
    ):
        url = f"http://{address.host}:{address.port}/"
        idle = [await client.get(url) for _ in range(3)]  # over one connection, which stays
        [busy] = [app for app in apps if app.name == idle[0].text]
        other = apps[1 - apps.index(busy)]
        busy.may_answer.clear()
        asking = asyncio.create_task(client.get(url))
        await until_here(lambda: busy.num_asked == 4)
        assert {(await ask(address)).text for _ in range(10)} == {other.name}
        busy.may_answer.set()
        await asking
        assert (await ask(address)).text == other.name, "neither has anything to do, and one has a connection"

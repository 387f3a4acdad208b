"""A gateway that takes requests itself: what it counts as under way, and an end that waits for answers."""

import asyncio
import socket
from itertools import chain

import httpx
import pytest

from deployments.http.client_connections import ClientConnections
from deployments.http.own_port import NoOwnPort, OwnPort
from policies.errors import ConfigError
from tests.deployments.listener.listeners import App, ask, gateway, listening, new_address, say
from tests.tables import for_each
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


@for_each("endless", [b"a:b\r\n", b"a: " + b"x" * 1_000, b"1;extension=" + b"x" * 1_000])
async def test_what_follows_the_head_and_is_no_body_ends_the_connection(endless: bytes) -> None:
    """Trailers, or one that never ends, or a chunk whose length is never told."""
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    begin = head if b"extension" in endless else head + b"0\r\n"
    part = endless * (10_000 // len(endless)) if b"\r\n" in endless else endless
    app = App("a")
    async with listening(new_address()) as address, gateway(app, address) as port:
        parts = (part if each else part[:0] for each in range(1, 200_000_000 // len(part)))
        answer = await asyncio.wait_for(say(address, chain([begin, endless], parts)), 20)
        assert answer == b"" or b"431" in answer or answer.startswith(b"HTTP/1.1 200")
        await until_here(lambda: port._acceptor._num_connections == 0)


async def test_requests_of_one_connection_don_t_wait_without_bound() -> None:
    app = App("a", may_answer=False)
    async with listening(new_address()) as address, gateway(app, address) as port:
        asked = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
        said = await say(address, [asked * 10_000])
        assert not said or b'"code":"invalid_http"' in said, "what has not been read may take the words with it"
        await until_here(lambda: port._acceptor._num_connections == 0)
        assert app.num_asked == 1
        app.may_answer.set()
        answers = await say(address, [asked * 10 + b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"])
        assert answers.count(b"HTTP/1.1 200") == 11


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

"""What gateways of one node share: connections by load, and a socket that outlives whoever dies or stands still."""

import asyncio
import errno
import signal
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial

import httpx
import psutil
import pytest

from deployments.listener import acceptor
from deployments.listener.acceptor import CROWD, MAX_AT_ONCE, MAX_LEFT, Acceptor, NoListener, num_waiting
from deployments.listener.address import Address
from deployments.listener.handover import is_of_this_user, new_socket, receive, send
from deployments.listener.listener import Listener, Patience
from deployments.listener.load_page import FREE, NUM_SLOTS, LoadPage, load_of
from deployments.listener.messages import Joining
from deployments.listener.refusing import Refusals
from tests.deployments.listener.listeners import App, ask, gateway, listening, new_address, process
from tests.waiting import until_here


async def test_connections_go_where_least_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "GRACE_S", 0.05)  # nobody stands still, but the machine may be busy
    apps = [App(name, may_answer=False) for name in "abcd"]
    async with listening(new_address()) as address, AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(gateway(app, address))
        asking = [asyncio.create_task(ask(address)) for _ in range(80)]
        await until_here(lambda: sum(app.num_asked for app in apps) == 80)
        for app in apps:
            app.may_answer.set()
        said = Counter(answer.text for answer in await asyncio.gather(*asking))
        assert said.total() == 80
        assert max(said.values()) - min(said.values()) <= MAX_LEFT


@asynccontextmanager
async def ahead_of_another(monkeypatch: pytest.MonkeyPatch, requests: int) -> AsyncIterator[tuple[Address, Acceptor]]:
    """A gateway with so many requests beside one that has none and stands still; it looks when it is told to."""
    monkeypatch.setattr(acceptor, "GRACE_S", 3600.0)
    async with listening(new_address()) as address, gateway(App("a", may_answer=False), address) as port:
        own = port._acceptor
        asyncio.get_running_loop().remove_reader(own._listening)
        own._page.claim()
        own.count(requests=requests)
        yield address, own
        own.count(requests=-requests)


async def test_a_gateway_that_finds_no_connection_waits_for_none_so_that_the_next_one_has_its_whole_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ahead_of_another(monkeypatch, 1) as (address, own):
        own._on_readable()  # the other one was faster
        assert own._grace is None

        with socket.create_connection(address[:2]):
            own._on_readable()
            assert own._grace is not None
            assert num_waiting(own._listening) == 1


async def test_in_a_crowd_a_gateway_does_not_wait_for_one_that_has_less_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ahead_of_another(monkeypatch, CROWD * 10) as (address, own):
        clients = [socket.create_connection(address[:2]) for _ in range(CROWD + MAX_AT_ONCE)]
        assert num_waiting(own._listening) == CROWD + MAX_AT_ONCE

        own._on_readable()
        assert num_waiting(own._listening) == CROWD
        own._on_readable()
        assert num_waiting(own._listening) == CROWD, "it waits for the other one"
        for client in clients:
            client.close()


async def test_a_gateway_that_is_ahead_takes_its_part_of_what_is_more_than_the_others_are_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ahead_of_another(monkeypatch, 3) as (address, own):
        clients = [socket.create_connection(address[:2]) for _ in range(11)]

        own._on_readable()

        assert num_waiting(own._listening) == 7, "as many as the other one needs to have seven, too"
        for client in clients:
            client.close()


def test_those_that_are_less_busy_have_room_for_what_makes_them_as_busy_and_for_one_at_least() -> None:
    page = LoadPage.create()
    loads = [load_of(5, 9), load_of(2, 9), load_of(5, 3), load_of(7, 0)]
    for load in loads:
        slot = page.claim()
        assert slot is not None
        page.say(slot, load)
    assert [page.room_below(load) for load in loads] == [3 + 1, 0, 3, 2 + 5 + 2]
    page.close()


async def test_what_no_gateway_takes_is_refused_and_the_next_gateway_serves_again() -> None:
    async with listening(new_address()) as address:
        await until_here(lambda: is_listening(address.port))
        refused = await ask(address, "/v1/completions")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json()["error"]["code"] == "no_gateway_available"
        assert (await ask(address, "/v1/messages")).json()["error"]["type"] == "overloaded_error"
        async with gateway(App("a"), address):
            assert (await ask(address)).text == "a"


async def test_a_client_that_wants_tls_is_closed_and_told_nothing_that_it_would_not_understand() -> None:
    async with listening(new_address()) as address:
        await until_here(lambda: is_listening(address.port))
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"\x16\x03\x01\x00")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert (await ask(address)).status_code == 503


async def test_connections_that_were_reset_keep_nobody_waiting_for_the_refusal() -> None:
    refusals = Refusals()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(6)]
        for reset in clients[::2]:
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.close()
        assert await refusals.answer_all(listening) == len(clients)
    for client in clients:
        client.close()
    await refusals.close()


async def test_a_body_that_still_comes_is_read_before_it_is_refused() -> None:
    async with listening(new_address()) as address, httpx.AsyncClient() as client:
        await until_here(lambda: is_listening(address.port))
        refused = await client.post(f"http://{address.host}:{address.port}/v1/completions", content=b"x" * 4_000_000)
        assert refused.status_code == 503


async def test_connections_wait_for_a_gateway_that_is_being_started_anew() -> None:
    async with listening(new_address(), Patience(refuse_after_s=60.0)) as address:
        async with gateway(App("a"), address):
            assert (await ask(address)).text == "a"
        asking = asyncio.create_task(ask(address))
        await asyncio.wait([asking], timeout=0.5)
        assert not asking.done()
        async with gateway(App("b"), address):
            assert (await asking).text == "b"


async def test_a_gateway_that_stands_still_or_is_killed_is_in_nobodys_way() -> None:
    address = new_address()
    async with listening(address):
        with process("a", address) as a, process("b", address) as b:
            await until_said(address, {"a", "b"})
            a.send_signal(signal.SIGSTOP)
            await until_here(lambda: psutil.Process(a.pid).status() == psutil.STATUS_STOPPED)
            assert {(await ask(address)).text for _ in range(30)} == {"b"}
            a.send_signal(signal.SIGCONT)
            await until_said(address, {"a", "b"})
            b.kill()
            assert {(await ask(address)).text for _ in range(30)} == {"a"}


async def test_gateways_go_on_without_a_listener_and_bring_their_socket_to_the_next_one() -> None:
    address = new_address()
    with process("listener", address) as first, process("a", address), process("b", address):
        await until_said(address, {"a", "b"})
        first.kill()
        first.wait()
        await until_said(address, {"a", "b"})
        async with listening(address), gateway(App("c"), address):
            await until_said(address, {"a", "b", "c"})


async def test_a_gateway_that_died_while_there_was_no_listener_is_forgotten() -> None:
    address = new_address()
    next_one = Listener(address, Patience(bring_s=0.2))
    with ExitStack() as stack:
        first = stack.enter_context(process("listener", address))
        a, b = (stack.enter_context(process(name, address)) for name in "ab")
        await until_said(address, {"a", "b"})
        for each in (first, b):
            each.kill()
            each.wait()
        running = asyncio.create_task(next_one.run())
        await until_here(lambda: sum(load != FREE for load in next_one._page._loads) == 1)
        assert (await ask(address)).text == "a"
        assert a.poll() is None
        running.cancel()
        await asyncio.wait([running])


async def test_a_listener_without_gateways_gives_the_port_back() -> None:
    address = new_address()
    await asyncio.wait_for(Listener(address, Patience(end_after_s=0.1)).run(), 10)
    assert not is_listening(address.port)


async def test_a_gateway_waits_for_a_listener_that_starts_and_gives_up_on_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = new_address()
    running: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def start() -> None:
        if not running:
            loop.call_soon_threadsafe(lambda: running.append(loop.create_task(Listener(address).run())))

    own = await Acceptor.open(address, lambda connection: connection.close(), start)
    own.close()
    running[0].cancel()
    await asyncio.wait(running)
    monkeypatch.setattr(acceptor, "START_S", 0.1)
    with pytest.raises(NoListener, match=f"no listener for 127.0.0.1:{address.port}"):
        await Acceptor.open(address, lambda connection: connection.close(), lambda: None)


async def test_a_gateway_without_descriptors_leaves_connections_to_others_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class OutOfDescriptors:
        def __init__(self, listening: socket.socket) -> None:
            self.fileno, self.close, self.num_asked = listening.fileno, listening.close, 0
            self._accept = listening.accept

        def accept(self) -> tuple[socket.socket, object]:
            self.num_asked += 1
            if self.num_asked == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return self._accept()

    monkeypatch.setattr(acceptor, "PAUSE_S", 0.05)
    async with listening(new_address()) as address, gateway(App("a"), address) as short:
        short._acceptor._listening = OutOfDescriptors(short._acceptor._listening)  # type: ignore[assignment]
        assert (await ask(address)).text == "a"
    assert "Too many open files" in caplog.text


async def test_another_application_and_another_user_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(new_address()) as address:
        await until_here(lambda: is_listening(address.port))
        with new_socket() as end, pytest.raises(ConnectionRefusedError):
            end.connect(address._replace(scope="another").meeting_point())
        monkeypatch.setattr("deployments.listener.handover.os.getuid", lambda: -1)
        with new_socket() as end:
            end.connect(address.meeting_point())
            assert not is_of_this_user(end)
            await until_here(lambda: has_hung_up(end))


@pytest.mark.parametrize(
    "said", [b"", b"nonsense", b'{"type": "Joined", "slot": 3}', b'{"type": "Joining", "slot": "x"}']
)
async def test_nonsense_is_hung_up_on(said: bytes) -> None:
    async with listening(new_address()) as address, gateway(App("a"), address):
        with new_socket() as end:
            end.connect(address.meeting_point())
            if said:
                end.send(said)
            else:
                end.shutdown(socket.SHUT_WR)
            await until_here(lambda: has_hung_up(end))
        assert (await ask(address)).text == "a"


async def test_a_node_has_as_many_gateways_as_its_page_has_slots() -> None:
    async with listening(new_address()) as address:
        await until_here(lambda: is_listening(address.port))
        with ExitStack() as stack:
            ends = [stack.enter_context(new_socket()) for _ in range(NUM_SLOTS + 1)]
            for end in ends:
                end.connect(address.meeting_point())
                send(end, Joining())
                await until_here(partial(has_spoken, end))
            answers = [receive(end) for end in ends]
        said = [answer.message for answer in answers if answer is not None]
        assert [type(each).__name__ for each in said] == ["Joined"] * NUM_SLOTS + ["Refused"]
        for answer in filter(None, answers):
            answer.drop()


def test_a_page_says_who_has_least_to_do_and_how_many_connections_were_taken() -> None:
    page = LoadPage.create()
    assert page.least() == FREE
    slots = [page.claim(), page.claim()]
    assert slots == [0, 1]
    page.say(0, load_of(2, 5))
    page.say(1, load_of(2, 3))
    page.count(1)
    page.count(0)
    assert (page.least(), page.num_taken()) == (load_of(2, 3), 2)
    page.free_all_but({0})
    assert (page.least(), page.claim()) == (load_of(2, 5), 1)
    page.close()


async def until_said(address: Address, names: set[str]) -> None:
    """Until each of these gateways has answered a request."""
    said: set[str] = set()
    async with asyncio.timeout(60):
        while not names <= said:
            with suppress(httpx.TransportError):
                said.add((await ask(address)).text)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_spoken(end: socket.socket) -> bool:
    try:
        end.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True


def has_hung_up(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True

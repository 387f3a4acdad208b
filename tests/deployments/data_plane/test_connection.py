"""A gateway's and a replica's end on a real socket: every attempt ends once, nothing is left on either side."""

import asyncio
import logging

import msgspec
import pytest

from deployments.data_plane import attempt_server, frames, handshake, replica_connection
from deployments.data_plane.attempt_server import AttemptServer
from deployments.data_plane.connections import Connections
from deployments.data_plane.endpoint import Endpoint, new_key
from deployments.data_plane.frames import FrameReader
from deployments.data_plane.messages import Cancel, Given, Open, frame_of, read_gateway, read_replica
from deployments.data_plane.outbox import Outbox
from deployments.data_plane.replica_connection import MOST_FAILURES, ConnectionState, ReplicaConnection
from deployments.wire.attempt_call import WINDOW_ITEMS
from deployments.wire.inner_hop import Failure, Item
from engines.contract import Chunk
from policies import Reason
from tests.deployments.data_plane.ends import END, Ends, Engine, Heard, an_order
from tests.waiting import until_here


async def test_what_a_replica_gives_arrives_in_order_and_the_verdict_ends_it() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(an_order("q", b"request"), heard)
        ends.engine.gives("q", Chunk("a", (1,)), Chunk("b", (2,)), END)

        await until_here(lambda: heard.text == "ab.")
        assert ends.engine.orders["q"] == an_order("q", b"request")
        await asyncio.wait_for(ends.server.drained(), 5)
        assert (heard.failures, ends.connection._calls, ends.engine.stopped) == ([], {}, [])


async def test_many_attempts_share_the_connection_and_keep_their_items_apart() -> None:
    async with Ends.connected() as ends:
        heard = {f"q{number}": Heard() for number in range(50)}
        for name, listener in heard.items():
            ends.connection.call(an_order(name), listener)
            ends.engine.gives(name, Chunk(name, (1,)), END)
        await until_here(lambda: all(each.text.endswith(".") for each in heard.values()))
        assert {name: each.text for name, each in heard.items()} == {name: f"{name}." for name in heard}
        assert len(ends.server._connections) == 1


async def test_an_attempt_that_comes_before_the_connection_is_there_waits_for_it() -> None:
    async with Ends.connected(waits=False) as ends:
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        assert ends.connection.state is ConnectionState.CONNECTING
        ends.engine.gives("q", END)
        await until_here(lambda: heard.items == [END])


async def test_a_replica_is_ahead_by_a_window_of_items_and_no_further() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        call = ends.connection.call(an_order("q"), heard)
        ends.engine.gives("q", *[Chunk("x", (1,))] * (3 * WINDOW_ITEMS), END)
        await until_here(lambda: len(heard.items) == WINDOW_ITEMS)
        await asyncio.sleep(0.01)
        assert ends.engine.given["q"] == WINDOW_ITEMS, "the engine is not even asked for more"

        for _ in range(WINDOW_ITEMS // 2):
            call.consumed()
        await until_here(lambda: len(heard.items) == WINDOW_ITEMS + WINDOW_ITEMS // 2)

        while not heard.text.endswith("."):
            call.consumed()
            await asyncio.sleep(0)
        assert len(heard.items) == 3 * WINDOW_ITEMS + 1


async def test_a_verdict_needs_no_room_after_it() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        ends.engine.gives("q", *[Chunk("x", (1,))] * (WINDOW_ITEMS - 1), END)
        await until_here(lambda: heard.text.endswith("."))
        await asyncio.wait_for(ends.server.drained(), 5)


async def test_a_slow_attempt_does_not_hold_up_the_others() -> None:
    async with Ends.connected() as ends:
        slow, quick = Heard(), Heard()
        ends.connection.call(an_order("slow"), slow)
        ends.engine.gives("slow", *[Chunk("x", (1,))] * (2 * WINDOW_ITEMS), END)
        await until_here(lambda: len(slow.items) == WINDOW_ITEMS)
        ends.connection.call(an_order("quick"), quick)
        ends.engine.gives("quick", END)
        await until_here(lambda: quick.items == [END])


async def test_a_cancelled_attempt_stops_on_the_replica_and_is_heard_of_no_more() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        call = ends.connection.call(an_order("q"), heard)
        ends.engine.gives("q", Chunk("a", (1,)))
        await until_here(lambda: heard.text == "a")

        call.cancel()
        call.cancel()

        await until_here(lambda: ends.engine.stopped == ["q"])
        await asyncio.wait_for(ends.server.drained(), 5)
        assert (heard.text, heard.failures) == ("a", [])


async def test_an_attempt_that_raises_or_says_no_verdict_has_failed_all_the_same() -> None:
    async with Ends.connected() as ends:
        raised, silent = Heard(), Heard()
        ends.connection.call(an_order("raised"), raised)
        ends.engine.gives("raised", ZeroDivisionError("why"))
        ends.connection.call(an_order("silent"), silent)
        ends.engine.gives("silent", Chunk("a", (1,)), None)
        await until_here(lambda: raised.items and len(silent.items) == 2)
        assert raised.items == [Failure(Reason.ENGINE_ERROR, "ZeroDivisionError: why")]
        assert silent.items[1] == Failure(Reason.REPLICA_LOST, "the attempt ended without a verdict")


async def test_an_attempt_whose_deadline_has_passed_is_stopped_though_its_gateway_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_server, "DEADLINE_GRACE_S", 0.01)
    async with Ends.connected() as ends:
        late, patient = Heard(), Heard()
        ends.connection.call(msgspec.structs.replace(an_order("late"), patience_s=0.0), late)
        ends.connection.call(msgspec.structs.replace(an_order("patient"), patience_s=60.0), patient)
        await until_here(lambda: ends.engine.stopped == ["late"])
        await until_here(lambda: late.items)
        assert [item.reason for item in late.items if isinstance(item, Failure)] == [Reason.DEADLINE_EXCEEDED]
        ends.engine.gives("patient", END)
        await until_here(lambda: patient.items == [END])


class SpeaksAnotherLanguage(asyncio.Protocol):
    """Another program at the port, which has the first word, too."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"SSH-2.0-OpenSSH_9.9\r\n")


async def test_a_port_where_another_program_speaks_is_left_to_rays_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_connection, "FIRST_BACKOFF_S", 0.001)
    server = await asyncio.get_running_loop().create_server(SpeaksAnotherLanguage, "127.0.0.1", 0)
    connection = ReplicaConnection(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], new_key()), "gateway-a")
    heard = Heard()
    connection.call(an_order("q"), heard)
    await until_here(lambda: not connection.is_usable)
    assert (heard.failures, heard.was_taken) == ([Reason.REPLICA_LOST], False)
    connection.close()
    server.close()


async def test_a_lost_connection_fails_what_is_on_it_stops_it_on_the_replica_and_comes_back() -> None:
    async with Ends.connected() as ends:
        heard = [Heard(), Heard()]
        for number, listener in enumerate(heard):
            ends.connection.call(an_order(f"q{number}"), listener)
            ends.engine.gives(f"q{number}", Chunk("a", (1,)))
        await until_here(lambda: all(each.text == "a" for each in heard))

        next(iter(ends.server._connections))._transport.abort()

        await until_here(lambda: all(each.failures == [Reason.REPLICA_LOST] for each in heard))
        assert all(each.was_taken for each in heard), "the replica may have been lost of them"
        await until_here(lambda: sorted(ends.engine.stopped) == ["q0", "q1"])
        between = Heard()
        ends.connection.call(an_order("between"), between)
        await until_here(lambda: between.failures == [Reason.REPLICA_LOST])
        assert not between.was_taken
        await until_here(lambda: ends.connection.state is ConnectionState.READY)
        after = Heard()
        ends.connection.call(an_order("after"), after)
        ends.engine.gives("after", END)
        await until_here(lambda: after.items == [END])


async def test_kv_that_is_given_up_reaches_the_replica_and_is_waited_for_at_its_end() -> None:
    async with Ends.connected(waits=False) as ends:
        ends.connection.release(b"handle")
        await until_here(lambda: ends.connection.state is ConnectionState.READY)
        await until_here(lambda: ends.engine.released == [b"handle"])
        await ends.server.close()
        await until_here(lambda: ends.connection.state is not ConnectionState.READY)
        ends.connection.release(b"to nobody")
    assert ends.engine.released == [b"handle"]


async def test_a_replica_that_can_not_be_reached_is_left_to_rays_handles_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_connection, "FIRST_BACKOFF_S", 0.001)
    engine = Engine()
    server = await AttemptServer.start(engine.run, engine.release_kv, "127.0.0.1")
    endpoint = server.endpoint
    await server.close()
    connection = ReplicaConnection(endpoint, "gateway-a")
    await until_here(lambda: connection._num_failures >= MOST_FAILURES)
    assert not connection.is_usable

    again = AttemptServer(engine.run, engine.release_kv)
    again.endpoint = endpoint
    loop = asyncio.get_running_loop()
    again._server = await loop.create_server(
        lambda: attempt_server._Connection(again), endpoint.host, endpoint.port, reuse_address=True
    )
    await until_here(lambda: connection.is_usable)
    connection.close()
    await again.close()


async def test_a_replica_that_was_reached_and_can_not_be_any_more_is_lost_whatever_ray_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_connection, "FIRST_BACKOFF_S", 0.001)
    async with Ends.connected() as ends:
        await ends.server.close()
        await until_here(lambda: ends.connection._num_failures > MOST_FAILURES)
        assert ends.connection.is_usable, "over Ray's handles it would be waited for, were the head away"
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        await until_here(lambda: heard.failures == [Reason.REPLICA_LOST])
        assert not heard.was_taken


async def test_a_gateway_without_the_replicas_key_gets_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    async with Ends.connected() as ends:
        with caplog.at_level(logging.WARNING, "ray.serve"):
            stranger = ReplicaConnection(ends.endpoint(new_key()), "stranger")
            heard = Heard()
            stranger.call(an_order("q"), heard)
            await until_here(lambda: heard.failures == [Reason.REPLICA_LOST])
        stranger.close()
        assert ends.engine.orders == {}
        assert "does not have this replica's key" in caplog.text


async def test_ends_of_different_versions_leave_it_to_rays_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Ends.connected(waits=False) as ends:
        monkeypatch.setattr(handshake, "VERSION", 2)
        opening = ends.server.endpoint
        monkeypatch.setattr(handshake.ReplicaHandshake, "opening", _welcome_of_version_1)
        connection = ReplicaConnection(opening, "gateway-b")
        heard = Heard()
        connection.call(an_order("q"), heard)
        await until_here(lambda: connection.state is ConnectionState.REFUSED)
        assert heard.failures == [Reason.REPLICA_LOST], "and is tried again, the other way"
        assert not connection.is_usable
        connection.close()


def _welcome_of_version_1(_: handshake.ReplicaHandshake) -> bytes:
    return frames.frame(handshake._encode(handshake.Welcome(1, bytes(handshake.NONCE_BYTES))))


class Raises(Heard):
    """A listener with a bug."""

    def receive(self, item: Item) -> None:
        raise ZeroDivisionError


async def test_a_listener_that_raises_fails_its_own_attempt_and_no_other() -> None:
    async with Ends.connected() as ends:
        broken, sound = Raises(), Heard()
        ends.connection.call(an_order("broken"), broken)
        ends.connection.call(an_order("sound"), sound)
        ends.engine.gives("broken", Chunk("a", (1,)))
        ends.engine.gives("sound", Chunk("a", (1,)), END)
        await until_here(lambda: sound.text == "a.")
        assert broken.failures == [Reason.ENGINE_ERROR]
        await until_here(lambda: ends.engine.stopped == ["broken"])


async def test_a_retired_connection_ends_with_its_last_attempt() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        ends.connection.retire()
        await asyncio.sleep(0)
        assert ends.connection.state is ConnectionState.READY
        ends.engine.gives("q", Chunk("a", (1,)), END)
        await until_here(lambda: ends.connection.state is ConnectionState.CLOSED)
        assert heard.text == "a."
        await until_here(lambda: not ends.server._connections)


async def test_a_connection_that_is_closed_fails_what_is_on_it_and_what_comes_later() -> None:
    async with Ends.connected() as ends:
        before, after = Heard(), Heard()
        ends.connection.call(an_order("before"), before)
        ends.connection.close()
        ends.connection.call(an_order("after"), after)
        assert after.failures == [], "never from inside the call"
        await until_here(lambda: before.failures == after.failures == [Reason.REPLICA_LOST])


async def test_an_order_that_is_too_long_is_refused_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_connection, "MAX_ORDER_BYTES", 100)
    async with Ends.connected() as ends:
        long, short = Heard(), Heard()
        ends.connection.call(an_order("long", bytes(101)), long)
        ends.connection.call(an_order("short", bytes(100)), short)
        ends.engine.gives("short", END)
        await until_here(lambda: short.items == [END])
        assert long.failures == [Reason.INVALID_REQUEST]


async def test_a_replica_that_closes_lets_what_it_has_end_first() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        await until_here(lambda: "q" in ends.engine.orders)
        draining = asyncio.create_task(ends.server.drained())
        await asyncio.sleep(0.01)
        assert not draining.done()
        ends.engine.gives("q", END)
        await asyncio.wait_for(draining, 5)
        await until_here(lambda: heard.items == [END])


async def strangers(server: AttemptServer, *said: bytes) -> bytes:
    """All that a replica answers to somebody who just talks, until it hangs up."""
    reader, writer = await asyncio.open_connection(*server.endpoint[:2])
    for each in said:
        writer.write(each)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", frame_of([Cancel(1)]), bytes(5000), b"\0\0\0\2\xc1\xc1"])
async def test_a_stranger_is_hung_up_on(said: bytes) -> None:
    async with Ends.connected() as ends:
        assert len(await strangers(ends.server, said)) < 300
        assert ends.connection.state is ConnectionState.READY
        assert ends.engine.orders == {}


async def test_a_stranger_that_says_nothing_is_hung_up_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_server, "HANDSHAKE_PATIENCE_S", 0.01)
    async with Ends.connected(waits=False) as ends:
        assert len(await strangers(ends.server)) < 100


async def test_a_gateway_that_begins_a_stream_twice_is_hung_up_on() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        ends.connection.send(Open(0, an_order("again"), 1))
        await until_here(lambda: heard.failures == [Reason.REPLICA_LOST])


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def abort(self) -> None:
        self.is_aborted = True


async def test_all_that_is_said_in_one_turn_of_the_loop_is_one_frame() -> None:
    written = Written()
    box = Outbox(written)  # type: ignore[arg-type]
    for number in range(100):
        box.put(Cancel(number))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    [data] = written.writes
    [body] = FrameReader().feed(data)
    assert read_gateway(body) == [Cancel(number) for number in range(100)]


async def test_what_is_too_much_for_one_frame_goes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 20)
    written = Written()
    box = Outbox(written)  # type: ignore[arg-type]
    for number in range(10):
        box.put(Cancel(number))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(written.writes) == 10
    assert not written.is_aborted

    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 2)
    box.put(Cancel(11))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert written.is_aborted


async def test_an_item_that_is_too_much_for_a_frame_ends_its_stream_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 200)
    written = Written()
    box = Outbox(written)  # type: ignore[arg-type]
    for stream, text in ((1, "a"), (2, "b" * 300), (3, "c")):
        box.put(Given(stream, Chunk(text, (1,))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    said = [message for data in written.writes for body in FrameReader().feed(data) for message in read_replica(body)]
    assert [each.stream for each in said if isinstance(each, Given)] == [1, 2, 3]
    failed = said[1]
    assert isinstance(failed, Given)
    assert isinstance(failed.item, Failure)
    assert failed.item.reason is Reason.INVALID_REQUEST
    assert not written.is_aborted


async def test_a_gateway_connects_to_what_it_sees_and_lets_go_of_what_has_gone() -> None:
    engine = Engine()
    servers = {name: await AttemptServer.start(engine.run, engine.release_kv, "127.0.0.1") for name in "ab"}
    connections = Connections("gateway-a")
    said = {name: server.to_metadata() for name, server in servers.items()}

    connections.follow("pool", {**said, "c": {"role": "unified"}})
    assert connections.to("c") is None, "that takes no connections"
    assert connections.to("nobody") is None
    kept = connections.to("a")
    gone = connections.to("b")
    connections.follow("pool", {"a": said["a"]})

    assert connections.to("a") is kept
    assert connections.to("b") is None
    assert isinstance(gone, ReplicaConnection)
    await until_here(lambda: gone.state is ConnectionState.CLOSED)
    connections.close()
    for server in servers.values():
        await server.close()

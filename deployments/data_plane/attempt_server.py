"""A replica's end of the data plane: takes connections of gateways and runs what they order."""

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Self, cast

from deployments.data_plane.endpoint import Endpoint, new_key
from deployments.data_plane.frames import MAX_FRAME_BYTES, FrameError, FrameReader
from deployments.data_plane.handshake import MAX_HANDSHAKE_BYTES, HandshakeFailed, ReplicaHandshake
from deployments.data_plane.kept_answers import NOT_KEPT, KeptAnswer, KeptAnswers, NotKept
from deployments.data_plane.messages import (
    Beat,
    Cancel,
    FromGateway,
    Given,
    Grant,
    Open,
    Recall,
    Recalled,
    Release,
    read_gateway,
)
from deployments.data_plane.outbox import Outbox, keep_alive
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Failure, Item, is_last
from policies.decisions import Reason

LOGGER = logging.getLogger("ray.serve")
HANDSHAKE_PATIENCE_S = 5.0
DEADLINE_GRACE_S = 1.0
"""A gateway ends its attempts at their deadlines itself; so much later, it has not."""
Run = Callable[[AttemptOrder], AsyncIterator[Item]]
"""Does what is ordered: items, the last of which says how it ended. Closing it early stops the attempt."""
ReleaseKv = Callable[[bytes], Awaitable[None]]
"""Gives KV up that an encoded handle names; raises nothing."""


class NoAttemptServer:
    """A replica takes no connections."""

    def to_metadata(self) -> dict[str, Any]:
        """What gateways are told of it: nothing."""
        return {}

    def beat(self, is_stalled: bool) -> None:
        """Nobody listens."""

    async def drained(self) -> None:
        """Returns at once."""

    async def close(self) -> None:
        """There is nothing to close."""


class AttemptServer(NoAttemptServer):
    """Runs the attempts of all gateways on one replica. Make it with :meth:`start`.

    Args:
        run: Runs one attempt.
        release_kv: Gives KV up.

    Attributes:
        endpoint: Where gateways find it.
    """

    def __init__(self, run: Run, release_kv: ReleaseKv) -> None:
        self.run = run
        self._release_kv = release_kv
        self._releases: set[asyncio.Future[None]] = set()
        self.streams: dict[asyncio.Task[None], _Stream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._kept = KeptAnswers(asyncio.get_running_loop().call_later)
        self.endpoint = Endpoint("", 0, new_key())

    @classmethod
    async def start(cls, run: Run, release_kv: ReleaseKv, host: str, tls: ssl.SSLContext | None = None) -> Self:
        """Listens at an address of this machine, on any port that is free.

        Args:
            run: Runs one attempt.
            release_kv: Gives KV up.
            host: The address.
            tls: How to encrypt; not at all without.

        Raises:
            OSError: It can't listen there.
        """
        server = cls(run, release_kv)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: _Connection(server), host, 0, ssl=tls)
        server._server = listening
        server.endpoint = server.endpoint._replace(host=host, port=listening.sockets[0].getsockname()[1])
        return server

    def to_metadata(self) -> dict[str, Any]:
        """Where gateways find it, and the key that they need there."""
        return self.endpoint.to_metadata()

    def beat(self, is_stalled: bool) -> None:
        """Tells all gateways that the replica lives, and whether its engine stands still."""
        for connection in self._connections:
            connection.beat(is_stalled)

    async def drained(self) -> None:
        """Returns when nothing runs; attempts that come meanwhile run, too."""
        await self._idle.wait()

    async def close(self) -> None:
        """Takes no more connections and ends those that there are, with all that runs on them."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        if ends := {*self.streams, *self._releases}:
            await asyncio.wait(ends)

    # -- for its connections ------------------------------------------------------------------------------------------

    def connected(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def disconnected(self, connection: "_Connection") -> None:
        self._connections.discard(connection)

    def begin(self, stream: "_Stream") -> "asyncio.Task[None]":
        """Runs a stream in a task of its own."""
        stream.kept = self._kept.begin(stream.order)
        task = asyncio.get_running_loop().create_task(stream.serve(self.run))
        self.streams[task] = stream
        self._idle.clear()
        task.add_done_callback(self._end)
        return task

    def release(self, handle: bytes) -> None:
        """Gives KV up that a prefill engine holds for one of its streams to be."""
        task = asyncio.ensure_future(self._release_kv(handle))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def recall(self, name: str) -> KeptAnswer | None:
        """What there is of an answer that another gateway goes on with; here it ends where it is."""
        for stream in list(self.streams.values()):
            if stream.order.kept_as == name:
                stream.hand_over()
        return self._kept.find(name)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self.streams.pop(task).kept.end()
        if not self.streams:
            self._idle.set()


class _Stream:
    """One attempt of one gateway."""

    __slots__ = ("_connection", "_credit", "_more", "_number", "kept", "order", "task")

    def __init__(self, connection: "_Connection", opened: Open) -> None:
        self._connection = connection
        self._number = opened.stream
        self.order = opened.order
        self._credit = opened.window_items
        self._more: asyncio.Future[None] | None = None
        self.kept: NotKept = NOT_KEPT
        self.task: asyncio.Task[None] | None = None

    async def serve(self, run: Run) -> None:
        """Gives what the attempt gives, as fast as it is consumed; the last item is always one that says the end."""
        item: Item | None = None
        try:
            async with asyncio.timeout(self.order.patience_s + DEADLINE_GRACE_S if self._has_deadline else None):
                async with aclosing(cast(Any, run(self.order))) as items:
                    async for item in items:
                        self.kept.add(item)
                        self._connection.give(self._number, item)
                        self._credit -= 1
                        if self._credit <= 0 and not is_last(item):
                            await self._granted()
        except TimeoutError:
            item = Failure(Reason.DEADLINE_EXCEEDED, "the deadline has passed, and its gateway is silent")
            self._connection.give(self._number, item)
        except Exception as error:
            LOGGER.exception("attempt %s failed in its replica", self.order.attempt_id)
            item = Failure(Reason.ENGINE_ERROR, f"{type(error).__name__}: {error}")
            self._connection.give(self._number, item)
        if item is None or not is_last(item):
            self._connection.give(self._number, Failure(Reason.REPLICA_LOST, "the attempt ended without a verdict"))
        self._connection.end(self._number)

    @property
    def _has_deadline(self) -> bool:
        return math.isfinite(self.order.patience_s)

    def hand_over(self) -> None:
        """Ends it where it is: another gateway goes on, as this one's client has gone there."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            self._connection.give(self._number, Failure(Reason.CLIENT_GONE, "another gateway goes on with this answer"))
            self._connection.end(self._number)

    def grant(self, items: int) -> None:
        """So much more may be given."""
        self._credit += items
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _granted(self) -> None:
        while self._credit <= 0:
            self._more = asyncio.get_running_loop().create_future()
            await self._more


class _Connection(asyncio.Protocol):
    """One gateway's. Until it has proved that it belongs here, it can do nothing but try that once."""

    def __init__(self, server: AttemptServer) -> None:
        self._server = server
        self._reader = FrameReader(MAX_HANDSHAKE_BYTES)
        self._handshake = ReplicaHandshake(server.endpoint.key)
        self._streams: dict[int, _Stream] = {}
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._last_number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._outbox = cast(asyncio.Transport, transport), Outbox(transport)
        keep_alive(transport)
        self._server.connected(self)
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE_PATIENCE_S, self.close)
        self._transport.write(self._handshake.opening())

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._reader.feed(data):
                if self._handshake.gateway:
                    for message in read_gateway(body):
                        self._take(message)
                else:
                    self._shake_hands(body)
        except HandshakeFailed as error:
            LOGGER.warning(
                "a connection from %s is refused: %s", self._transport.get_extra_info("peername"), str(error)
            )
            self._transport.write(self._handshake.refusal(str(error)))
            self.close()
        except FrameError as error:
            LOGGER.error("the connection of gateway %s is of no use: %s", self._handshake.gateway, str(error))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._server.disconnected(self)
        for stream in self._streams.values():
            self._stop(stream)
        self._streams.clear()

    def close(self) -> None:
        """What is written is still sent."""
        self._transport.close()

    def give(self, number: int, item: Item) -> None:
        """One stream's next item."""
        if not self._transport.is_closing():
            self._outbox.put(Given(number, item))

    def beat(self, is_stalled: bool) -> None:
        """The replica lives."""
        if self._handshake.gateway and not self._transport.is_closing():
            self._outbox.put(Beat(is_stalled))

    def end(self, number: int) -> None:
        """A stream has given all it has."""
        self._streams.pop(number, None)

    def _shake_hands(self, body: bytes) -> None:
        answer = self._handshake.answer(body)
        self._patience.cancel()
        self._reader.max_bytes = MAX_FRAME_BYTES
        self._transport.write(answer)

    def _take(self, message: FromGateway) -> None:
        match message:
            case Open():
                if message.stream <= self._last_number:
                    raise FrameError(f"stream {message.stream} is begun after {self._last_number}")
                self._last_number = message.stream
                stream = self._streams[message.stream] = _Stream(self, message)
                stream.task = self._server.begin(stream)
            case Grant():
                if granted := self._streams.get(message.stream):  # it may have ended meanwhile
                    granted.grant(message.items)
            case Cancel():
                if cancelled := self._streams.pop(message.stream, None):
                    self._stop(cancelled)
            case _:
                self._take_of_none(message)

    def _take_of_none(self, message: Recall | Release) -> None:
        """What belongs to no stream of this connection."""
        if isinstance(message, Recall):
            self._outbox.put(Recalled(message.number, self._server.recall(message.name)))
        else:
            self._server.release(message.handle)

    @staticmethod
    def _stop(stream: _Stream) -> None:
        if stream.task is not None:
            stream.task.cancel()

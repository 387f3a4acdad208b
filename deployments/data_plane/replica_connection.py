"""A gateway's end of the data plane: one connection to each replica, made again when it is lost."""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from enum import Enum
from typing import cast

from deployments.data_plane.endpoint import Endpoint
from deployments.data_plane.frames import MAX_FRAME_BYTES, FrameError, FrameReader
from deployments.data_plane.handshake import MAX_HANDSHAKE_BYTES, GatewayHandshake, HandshakeFailed
from deployments.data_plane.kept_answers import KeptAnswer
from deployments.data_plane.messages import (
    Beat,
    Cancel,
    FromGateway,
    FromReplica,
    Given,
    Grant,
    Open,
    Recall,
    Recalled,
    Release,
    read_replica,
)
from deployments.data_plane.outbox import Outbox, keep_alive
from deployments.wire.attempt_call import GRANT_ITEMS, WINDOW_ITEMS, AttemptListener, AttemptOrder
from deployments.wire.inner_hop import is_last
from policies.decisions import Reason

LOGGER = logging.getLogger("ray.serve")
CONNECT_PATIENCE_S = 2.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 2.0
MOST_FAILURES = 2
"""After so many in a row attempts go over Ray's handles, until a connection comes about: the first one."""
MAX_ORDER_BYTES = MAX_FRAME_BYTES // 2


class ConnectionState(Enum):
    """What a connection to a replica is good for."""

    CONNECTING = "connecting"
    """Attempts wait until it is there, or until it is known that it is not."""
    READY = "ready"
    LOST = "lost"
    """It is made again after a pause; attempts fail at once meanwhile."""
    REFUSED = "refused"
    """The two ends don't understand each other, and never will."""
    CLOSED = "closed"


class ReplicaConnection:
    """All attempts of this gateway on one replica. Lives on the gateway's event loop, and connects at once.

    Args:
        endpoint: Where the replica is.
        gateway: What this gateway is called there.
        tls: How to encrypt; not at all without.

    Attributes:
        state: What it is good for.
    """

    def __init__(self, endpoint: Endpoint, gateway: str, tls: ssl.SSLContext | None = None) -> None:
        self._endpoint = endpoint
        self._gateway = gateway
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _StreamCall] = {}
        self._next_stream = 0
        self._recalls: dict[int, asyncio.Future[KeptAnswer | None]] = {}
        self._next_recall = 0
        self._waiting: list[FromGateway] = []
        self._wire: _Wire | None = None
        self._is_retired = False
        self._was_reached = False
        self._num_failures = 0
        self._heard_at_s = 0.0
        self._says_stalled = False
        self.state = ConnectionState.CONNECTING
        self._connecting = self._loop.create_task(self._keep_connected())

    @property
    def is_usable(self) -> bool:
        """Whether attempts may go this way; not if the replica speaks another version or could never be reached.

        One that was reached and can't be any more is lost, and its attempts fail at once. Over Ray's handles they would
        wait until Ray knows that, which may be as long as the head is away.
        """
        return self.state is not ConnectionState.REFUSED and (self._was_reached or self._num_failures < MOST_FAILURES)

    def is_stalled(self, silent_s: float) -> bool:
        """Whether the replica says that its engine stands still, or has said nothing for so long."""
        is_silent = self._loop.time() - self._heard_at_s >= silent_s
        return self.state is ConnectionState.READY and (self._says_stalled or is_silent)

    def call(self, order: AttemptOrder, listener: AttemptListener) -> "_StreamCall":
        """Has the replica run an attempt; what comes of it goes to the listener, from the next turn on."""
        number = self._next_stream
        self._next_stream += 1
        call = self._calls[number] = _StreamCall(self, number, listener)
        if len(order.request) + len(order.handle) > MAX_ORDER_BYTES:
            self._loop.call_soon(self._lose, number, Reason.INVALID_REQUEST)
        elif self.state not in {ConnectionState.CONNECTING, ConnectionState.READY}:
            self._loop.call_soon(self._lose_untaken, number)
        else:
            self.send(Open(number, order, WINDOW_ITEMS))
        return call

    async def recall(self, name: str) -> KeptAnswer | None:
        """What the replica has of an answer that another gateway has begun; nothing, where it can't be asked."""
        if self.state not in {ConnectionState.CONNECTING, ConnectionState.READY}:
            return None
        number, self._next_recall = self._next_recall, self._next_recall + 1
        reply: asyncio.Future[KeptAnswer | None] = self._loop.create_future()
        self._recalls[number] = reply
        self.send(Recall(number, name))
        try:
            return await reply
        finally:
            self._recalls.pop(number, None)

    def release(self, handle: bytes) -> None:
        """Has KV given up that a handle names; who can't be told leaves it to its lease."""
        if self.state in {ConnectionState.CONNECTING, ConnectionState.READY}:
            self.send(Release(handle))

    def retire(self) -> None:
        """The replica is to get no new attempt: the connection ends with the last one of those it has."""
        self._is_retired = True
        self._close_if_done()

    def close(self) -> None:
        """Ends it now; what runs is lost."""
        self.state = ConnectionState.CLOSED
        self._connecting.cancel()
        if self._wire is not None:
            self._wire.close()
        self._lose_all()

    # -- for its calls ------------------------------------------------------------------------------------------------

    def send(self, message: FromGateway) -> None:
        """Now, or when the connection is there."""
        if self.state is ConnectionState.CONNECTING:
            self._waiting.append(message)
        elif self._wire is not None:
            self._wire.put(message)

    def forget(self, number: int) -> bool:
        """A stream is over; false if it was before."""
        call = self._calls.pop(number, None)
        if call is None:
            return False
        call.is_over = True
        if self._is_retired:
            self._loop.call_soon(self._close_if_done)
        return True

    # -- for the wire -------------------------------------------------------------------------------------------------

    def ready(self, wire: "_Wire") -> None:
        """The other end is who it should be."""
        self._wire = wire
        self._was_reached = True
        self.state = ConnectionState.READY
        self._heard_at_s, self._says_stalled = self._loop.time(), False
        for message in self._waiting:
            wire.put(message)
        self._waiting.clear()

    def hear(self, messages: Sequence[FromReplica]) -> None:
        """The replica lives, whatever it says."""
        self._heard_at_s = self._loop.time()
        for message in messages:
            match message:
                case Beat():
                    self._says_stalled = message.is_stalled
                case Recalled():
                    self._reply(message.number, message.answer)
                case Given():
                    self.take(message)

    def take(self, given: Given) -> None:
        """Passes an item on; what comes after a stream was cancelled is for nobody."""
        call = self._calls.get(given.stream)
        if call is None:
            return
        if is_last(given.item):
            self.forget(given.stream)
        try:
            call.listener.receive(given.item)
        except Exception:  # one attempt's trouble is not the others'
            LOGGER.exception("an item of stream %s could not be taken in", given.stream)
            if self.forget(given.stream):
                self.send(Cancel(given.stream))
            call.listener.fail(Reason.ENGINE_ERROR)

    # -- its own ------------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Connects, and connects again whenever that is lost, with growing pauses as long as it does not come about."""
        where = self._endpoint[:2]
        while self.state is not ConnectionState.REFUSED:
            self.state = ConnectionState.CONNECTING
            try:
                wire = await self._connected()
                self._num_failures = 0
                await wire.lost
                LOGGER.warning("the connection to replica %s:%s is lost", *where)
                self.state = ConnectionState.LOST
            except (OSError, TimeoutError, FrameError) as error:
                self._num_failures += 1
                LOGGER.warning("no connection to replica %s:%s comes about: %s", *where, repr(error))
                is_final = isinstance(error, HandshakeFailed) and error.is_final
                self.state = ConnectionState.REFUSED if is_final else ConnectionState.LOST
            self._lose_all()
            await asyncio.sleep(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**self._num_failures))

    async def _connected(self) -> "_Wire":
        handshake = GatewayHandshake(self._endpoint.key, self._gateway)
        async with asyncio.timeout(CONNECT_PATIENCE_S):
            _, wire = await self._loop.create_connection(
                lambda: _Wire(self, handshake), self._endpoint.host, self._endpoint.port, ssl=self._tls
            )
            try:
                await wire.shaken
            except BaseException:
                wire.close()
                raise
        return wire

    def _lose_all(self) -> None:
        lose = self._lose if self._wire is not None else self._lose_untaken
        self._wire = None
        self._waiting.clear()
        for number in list(self._calls):
            lose(number)
        for number in list(self._recalls):
            self._reply(number, None)

    def _reply(self, number: int, answer: KeptAnswer | None) -> None:
        reply = self._recalls.pop(number, None)
        if reply is not None and not reply.done():
            reply.set_result(answer)

    def _lose(self, number: int, reason: Reason = Reason.REPLICA_LOST) -> None:
        if (call := self._calls.get(number)) and self.forget(number):
            call.listener.fail(reason)

    def _lose_untaken(self, number: int) -> None:
        if (call := self._calls.get(number)) and self.forget(number):
            call.listener.fail(Reason.REPLICA_LOST, was_taken=False)

    def _close_if_done(self) -> None:
        if self._is_retired and not self._calls and self.state is not ConnectionState.CLOSED:
            self.close()


class _StreamCall:
    """One attempt; see :class:`deployments.wire.attempt_call.AttemptCall`."""

    __slots__ = ("_connection", "_consumed", "_number", "is_over", "listener")

    def __init__(self, connection: ReplicaConnection, number: int, listener: AttemptListener) -> None:
        self._connection = connection
        self._number = number
        self._consumed = 0
        self.is_over = False
        self.listener = listener

    def cancel(self) -> None:
        if self._connection.forget(self._number):
            self._connection.send(Cancel(self._number))

    def consumed(self) -> None:
        self._consumed += 1
        if self._consumed >= GRANT_ITEMS and not self.is_over:
            self._connection.send(Grant(self._number, self._consumed))
            self._consumed = 0


class _Wire(asyncio.Protocol):
    """One attempt at a connection, and the connection that it becomes.

    Attributes:
        shaken: Done when the other end has proved who it is; raises ``HandshakeFailed`` or ``ConnectionError``.
        lost: Done when it is over.
    """

    def __init__(self, owner: ReplicaConnection, handshake: GatewayHandshake) -> None:
        self._owner = owner
        self._handshake = handshake
        self._reader = FrameReader(MAX_HANDSHAKE_BYTES)
        loop = asyncio.get_running_loop()
        self.shaken: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(transport)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._reader.feed(data):
                if self._handshake.is_done:
                    self._owner.hear(read_replica(body))
                else:
                    self._shake_hands(body)
        except FrameError as error:
            LOGGER.error("a replica's connection is of no use: %s", str(error))
            if not self.shaken.done():
                self.shaken.set_exception(error)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.shaken.done():
            self.shaken.set_exception(ConnectionError(f"closed before it was made sure of: {exc}"))
        if not self.lost.done():
            self.lost.set_result(None)

    def put(self, message: FromGateway) -> None:
        """It leaves with all else that is said in this turn."""
        self._outbox.put(message)

    def close(self) -> None:
        """What is written is still sent."""
        self._transport.close()

    def _shake_hands(self, body: bytes) -> None:
        if answer := self._handshake.answer(body):
            self._transport.write(answer)
        if self._handshake.is_done and not self.shaken.done():
            self._reader.max_bytes = MAX_FRAME_BYTES
            self.shaken.set_result(None)
            self._owner.ready(self)

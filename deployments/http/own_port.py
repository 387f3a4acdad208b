"""A gateway that takes requests itself, where Serve runs no proxy: ``proxy_location: Disabled``.

All gateways of a node accept from one socket, and the one that has least to do goes first
(:mod:`deployments.listener`): no process and no copy of the bytes lies between a client and its gateway. A connection's
later requests stay with the gateway that has it.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any, Self

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from deployments.http.client_connections import ClientConnections, client_at
from deployments.http.discarded_body import NOTHING_DISCARDED, DiscardedBody, NothingDiscarded
from deployments.http.edge_tls import NO_TLS, OPEN_PATHS, NoTls
from deployments.http.hot_routes import HotRoutes
from deployments.http.request_pace import MAX_HEAD_BYTES, RequestPace
from deployments.listener.acceptor import Acceptor, Ensure
from deployments.listener.address import Address
from deployments.listener.quiet_server import QuietServer
from deployments.openai.errors import ApiError

LOGGER = logging.getLogger("ray.serve")


class NoOwnPort:
    """Serve's proxies take the requests."""

    async def close(self, patience_s: float) -> None:
        """There is nothing to close."""


class OwnPort(NoOwnPort):
    """Serves an ASGI application, and its hot routes past it. Make it with :meth:`open`.

    Args:
        app: The application.
        keep_alive_s: How long a connection without a request is kept.
        clients: How many connections each has, and may have.
        tls: How they are encrypted.
    """

    def __init__(self, app: Any, keep_alive_s: int, clients: ClientConnections, tls: NoTls = NO_TLS) -> None:
        self._clients = clients
        self._tls = tls
        self._server = QuietServer(
            uvicorn.Config(
                app,
                http=CountedConnection,
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_keep_alive=keep_alive_s,
                ws="none",  # an upgraded connection would end without a word to the acceptor
            )
        )
        self._connecting: set[asyncio.Task[Any]] = set()
        self._acceptor: Acceptor

    @classmethod
    async def open(
        cls,
        app: Any,
        address: Address,
        keep_alive_s: int,
        ensure: Ensure,
        clients: ClientConnections,
        *,
        tls: NoTls = NO_TLS,
    ) -> Self:
        """Takes requests from now on.

        Args:
            app: The application.
            address: Where.
            keep_alive_s: How long a connection without a request is kept.
            ensure: Starts the node's listener if there is none; blocks, in a thread.
            clients: How many connections each has, and may have.
            tls: How they are encrypted.

        Raises:
            ConfigError: Another program listens there, or the address is none of this node's.
            NoListener: The listener does not start.
        """
        port = cls(app, keep_alive_s, clients, tls)
        try:
            port._acceptor = await Acceptor.open(address, port._take, ensure)
        except BaseException:
            await port._server.close(0.0)
            raise
        LOGGER.info("requests are taken at %s:%s, without a proxy", address.host, address.port)
        return port

    async def close(self, patience_s: float) -> None:
        """Takes no more connections, and waits so long for the answers that are under way."""
        self._acceptor.close()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=min(patience_s, FIRST_REQUEST_S))
        await self._server.close(patience_s)

    def _take(self, connection: socket.socket) -> None:
        client = client_at(connection)
        protocol = self._server.protocol(acceptor=self._acceptor, clients=self._clients, client=client, tls=self._tls)
        task = asyncio.get_running_loop().create_task(self._connect(protocol, connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, protocol: "CountedConnection", connection: socket.socket) -> None:
        tls = self._tls
        try:
            if not protocol.may_stay and tls.context is not None:
                raise ConnectionRefusedError  # to say so would take a handshake
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=tls.context,
                ssl_handshake_timeout=tls.handshake_s,
                ssl_shutdown_timeout=tls.shutdown_s,
            )
        except OSError:  # the client has gone already, or what it says is no TLS
            protocol.end()
            connection.close()


FIRST_REQUEST_S = 1.0
"""How long a gateway that ends waits for a new client's handshake, and for its request: it may be on the way."""
GOODBYE_S = 5.0
"""How long a client has for its part of the end of TLS where nothing is left to be said; many never do it."""
TOO_SLOW = ApiError(408, "the request did not come in time; send it faster, or less of it", "request_too_slow")
TOO_MANY = ApiError(429, "too many connections from this address; close some", "too_many_connections")
NO_CERTIFICATE = ApiError(
    401, "a client certificate is needed, of an authority that is known here", "client_certificate_required"
)
MOST_WAITING = 16
"""Requests of one connection that wait for the answer before theirs."""
TOO_MANY_WAIT = ApiError(
    400, f"more than {MOST_WAITING} requests of this connection wait; read answers before you send more", "invalid_http"
)
LINGER_S = 30.0
"""How long a client that wants its connection closed may go on with a body that nobody wants, to read the answer then;
nginx gives it as long.
"""
CONTENT_LENGTH = b"content-length"
DISCARDED_BYTES = 64 * 1024
"""Less is read sooner than it is arranged to be thrown away."""
HEAD_TOO_LONG = ApiError(431, f"a request's headers have at most {MAX_HEAD_BYTES} bytes", "headers_too_long")


class CountedConnection(HotRoutes):
    """One connection of a client, which is busy from its accept on, or from a later request's head to its answer's end.
    One that does not send what it begins is closed.

    Args:
        acceptor: Is told of it.
        clients: Whose connections are counted.
        client: Whose it is.
        tls: How it is encrypted.
    """

    def __init__(
        self, *args: Any, acceptor: Acceptor, clients: ClientConnections, client: str, tls: NoTls, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._acceptor = acceptor
        self._clients = clients
        self._client = client
        self._tls = tls
        self._goodbye: asyncio.TimerHandle | None = None
        self.may_stay = clients.begin(client)
        self._is_busy = True
        self._has_head = self._is_whole = self._gets_on = False
        self._idle_bytes = self._body_bytes = self._declared_bytes = 0
        self._discarded: NothingDiscarded = NOTHING_DISCARDED
        self._linger: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._pace = RequestPace(self.loop, self._end_slow_request)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._pace.begin()
        if not self.may_stay:
            self._refuse(TOO_MANY)

    def data_received(self, data: bytes) -> None:
        self._gets_on = False
        super().data_received(data)
        self._pace.count(len(data))  # a later request begins in the line before
        self._idle_bytes = 0 if self._gets_on else self._idle_bytes + len(data)
        if self._pace.is_waiting and self._idle_bytes > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LONG)
        elif not self._pace.is_waiting and self.timeout_keep_alive_task is None:
            self._await_next_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_head = self._is_whole = False
        self._body_bytes = self._declared_bytes = 0
        self._pace.begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:  # what follows a body is nobody's
            return
        super().on_header(name, value)
        if len(name) == len(CONTENT_LENGTH) and name.lower() == CONTENT_LENGTH:
            self._declared_bytes = int(value.lstrip(b"0") or b"0")  # the parser knows it for a number

    def on_headers_complete(self) -> None:
        self._gets_on = True
        if len(self.pipeline) >= MOST_WAITING:
            self._refuse(TOO_MANY_WAIT)
            raise ConnectionAbortedError  # which the parser stops at
        super().on_headers_complete()
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._gets_on = True
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_whole = self._gets_on = True
        self._pace.end()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, "invalid_http"))

    def _end_slow_request(self) -> None:
        is_answering = not self._has_head and self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.flow.read_paused:  # an earlier request, or it is this side that does not take more
            self._pace.begin()
        else:
            self._refuse(TOO_SLOW)

    def _refuse(self, error: ApiError) -> None:
        """Says why the connection is closed, unless an answer is being written already."""
        self._pace.end()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if not is_answering and not self._is_answered_early:
            body = error.body()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        self._close()
        self.rest()

    def _close(self) -> None:
        """Nothing is left to be said, or next to nothing."""
        self.transport.close()
        if self._tls.context is not None and self._goodbye is None:
            self._goodbye = self.loop.call_later(GOODBYE_S, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close()

    def shutdown(self) -> None:
        """The gateway ends."""
        self._is_ending = True
        if self.cycle is None and self._is_busy:
            self.loop.call_later(FIRST_REQUEST_S, self._shut)
        else:
            self._shut()

    def _shut(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not self.transport.is_closing():
            self._close()

    def rest(self) -> None:
        """There is nothing to do for it."""
        if self._is_busy:
            self._is_busy = False
            self._acceptor.count(requests=-1)

    def end(self) -> None:
        """It is over."""
        self.rest()
        self._acceptor.count(connections=-1)
        if self.may_stay:
            self._clients.end(self._client)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: object) -> None:
        if self.transport.is_closing():
            return
        if cycle.scope["path"] not in OPEN_PATHS and not self._tls.knows(self.transport):
            self._refuse(NO_CERTIFICATE)
            return
        if not self._is_busy:
            self._is_busy = True
            self._acceptor.count(requests=1)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.rest()
        super().on_response_complete()
        if self._is_answered_early and self._rest_comes and not self.transport.is_closing():
            self._discard_rest()

    @property
    def _is_answered_early(self) -> bool:
        """Whether the latest request has its answer before it is whole: nobody wants the rest."""
        return self._has_head and not self._is_whole and self.cycle.response_complete

    @property
    def _rest_comes(self) -> bool:
        """Unless the client waits to be told to send a body, and was not."""
        return not self.cycle.waiting_for_100_continue or self._body_bytes > 0

    def _end_connection(self) -> None:
        """A client that still sends reads the answer first if the rest is taken: what is not would reset it."""
        if self._is_answered_early and self._rest_comes:
            for_s = FIRST_REQUEST_S if self._is_ending else LINGER_S
            self._linger = self.loop.call_later(for_s, self._close)
        else:
            super()._end_connection()

    def _discard_rest(self) -> None:
        left_bytes = self._declared_bytes - self._body_bytes
        is_plain = self._tls.context is None and not self.parser.should_upgrade()
        if left_bytes >= DISCARDED_BYTES and is_plain:
            with suppress(OSError):  # without a descriptor left the parser reads on
                self._discarded = DiscardedBody(
                    self.transport, left_bytes, self._count_discarded, self._go_on_behind_body
                )

    def _count_discarded(self, num_bytes: int) -> None:
        self._unset_keepalive_if_required()
        self._pace.count(num_bytes)

    def _go_on_behind_body(self) -> None:
        """What comes next is another request, for a parser that waits for no body."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_whole = True
        self._pace.end()
        self._await_next_request()

    def _await_next_request(self) -> None:
        """For as long as a connection is kept, if this one's last request is whole and answered."""
        if self.cycle is None or not self.cycle.response_complete or self.transport.is_closing():
            return
        if not self.cycle.keep_alive:
            self._close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._pace.end()
        self._discarded.close()
        if self._linger is not None:
            self._linger.cancel()
        if self._goodbye is not None:
            self._goodbye.cancel()
        self.end()
        super().connection_lost(exc)

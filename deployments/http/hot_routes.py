"""The routes that tokens go out through, without what lies between the HTTP parser and their handler.

uvicorn parses a request and would start an ASGI application: Serve's wrappers, FastAPI's middleware and routing, and
for each event of a stream two generators, a queue and a message. For a hot route its handler is started in their place.
All else of uvicorn's stays: keep-alive, pipelining, limits, the graceful end. Other routes go their usual way, and so
do these where Serve runs the application on another event loop, or behind its own Python proxy.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn import config as uvicorn_config
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from deployments.http.direct_request import DirectRequest, EventWriter, PushedEvents, Pusher

PROTOCOL = "deployments.http.hot_routes:HotRoutes"
KERNEL_BYTES = 16 * 1024
"""What the kernel keeps unsent for a client that is behind, on top of what is on its way."""
WRITE_BUFFER_BYTES = 2 * 1024
"""What a connection keeps beside that before its stream is paused. An event that waits here takes uvloop three times
its own bytes; one that waits in a paused stream grows by the tokens that come.
"""
Handler = Callable[[DirectRequest], Awaitable[Response]]
"""Answers a request. Raises nothing but ``CancelledError``."""


class RouteTable:
    """The hot routes of this process."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, handlers: dict[str, Handler]) -> None:
        """From now on every server that uvicorn starts in this process gives these to their handlers.

        Args:
            handlers: Of POST requests, by path. They belong to the event loop that this is called on.
        """
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        uvicorn_config.HTTP_PROTOCOLS["auto"] = PROTOCOL

    def handler_of(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> Handler | None:
        """That of a request, if its route is hot."""
        if loop is not self._loop or cycle.scope["method"] != "POST":
            return None
        return self._handlers.get(cycle.scope["path"])


ROUTES = RouteTable()
"""The one of this process."""


class HotRoutes(HttpToolsProtocol):
    """One connection of a client."""

    _pusher: Pusher | None = None
    _handling: "asyncio.Task[None] | None" = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        connected = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT") and connected.family in {socket.AF_INET, socket.AF_INET6}:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._handling is not None:
            self._handling.cancel()
        if self._pusher is not None:
            pusher, self._pusher = self._pusher, None
            pusher.gone()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pusher is not None:
            self._pusher.go_on()

    def on_response_complete(self) -> None:
        self._pusher = None
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: object) -> None:
        handler = ROUTES.handler_of(cycle, self.loop)
        if handler is None:
            super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]
            return
        self._handling = self.loop.create_task(self._handle(cycle, handler))
        self.tasks.add(self._handling)
        self._handling.add_done_callback(self.tasks.discard)

    async def _handle(self, cycle: RequestResponseCycle, handler: Handler) -> None:
        response = await handler(DirectRequest(cycle))
        if isinstance(response, StreamingResponse):
            with suppress(asyncio.CancelledError):  # the client has gone
                await response(cast(Scope, cycle.scope), cast(Receive, cycle.receive), cast(Send, cycle.send))
            return
        self._handling = None
        if isinstance(response, PushedEvents):
            await self._push(cycle, response)
            return
        if not cycle.disconnected:
            self._write_whole(cycle, response)
        if response.background is not None:
            await response.background()

    def _write_whole(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Head and body in one piece."""
        headers = [*self.server_state.default_headers, *response.raw_headers]
        if not cycle.keep_alive:
            headers.append((b"connection", b"close"))
        if any(HEADER_VALUE_RE.search(value) for _, value in headers):
            raise ValueError("a header's value has a control character")
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.transport.write(STATUS_LINE[response.status_code] + head + b"\r\n" + response.body)
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self._end_connection()
        cycle.on_response()

    def _end_connection(self) -> None:
        """Its last answer is written."""
        self.transport.close()

    async def _push(self, cycle: RequestResponseCycle, response: PushedEvents) -> None:
        """Sends the head and leaves the rest to the pusher: no task waits for it."""
        try:
            await cycle.send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        except BaseException:
            response.pusher.gone()
            raise
        if cycle.disconnected:
            response.pusher.gone()
            return
        self._pusher = response.pusher
        response.pusher.begin(EventWriter(self.transport, self.flow, cycle))

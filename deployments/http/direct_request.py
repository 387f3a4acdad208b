"""A request whose connection is at hand, and the response that is written straight to it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol, cast

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LAST_CHUNK = b"0\r\n\r\n"


class DirectHeaders(Headers):
    """Headers that are looked up in a dictionary, not gone through for each name."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._by_name: dict[bytes, list[str]] = {}
        for name, value in raw:
            self._by_name.setdefault(name, []).append(value.decode("latin-1"))

    def getlist(self, key: str) -> list[str]:
        return self._by_name.get(key.lower().encode("latin-1"), [])

    def __getitem__(self, key: str) -> str:
        return self._by_name[key.lower().encode("latin-1")][0]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower().encode("latin-1") in self._by_name


class DirectRequest(Request):
    """A request on a hot route.

    Its handler is cancelled when the client goes; it may answer with :class:`PushedEvents`.

    Args:
        cycle: The request and its response, as uvicorn keeps them.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        super().__init__(cast(Scope, cycle.scope), cast(Receive, cycle.receive))
        self._cycle = cycle
        self._headers = DirectHeaders(list(cycle.scope["headers"]))

    async def stream(self) -> AsyncGenerator[bytes, None]:
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue:
            async for part in super().stream():
                yield part
        else:  # it has come with the headers, as bodies mostly do
            body, cycle.body = bytes(cycle.body), bytearray()
            yield body


class Pusher(Protocol):
    """What writes the events of a response."""

    def begin(self, writer: "EventWriter") -> None:
        """The head is out: events may be written, from now on until the end."""
        ...

    def go_on(self) -> None:
        """The client has read on: there is room again after ``writer.is_paused`` was true."""
        ...

    def gone(self) -> None:
        """The client has gone; nothing that is written gets anywhere."""
        ...


class PushedEvents(Response):
    """A response of server-sent events, which are written when they come and not when they are asked for.

    Args:
        headers: Of the response.
        pusher: Writes its events.
    """

    media_type = "text/event-stream"

    def __init__(self, headers: Mapping[str, str], pusher: Pusher) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self.pusher = pusher


class EventWriter:
    """The body of one response, in chunks.

    Args:
        transport: The connection.
        flow: How far the client is behind.
        cycle: The request and its response.
    """

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._flow = flow
        self._cycle = cycle

    @property
    def is_paused(self) -> bool:
        """Whether the client is so far behind that nothing more should be written."""
        return self._flow.write_paused

    def write(self, events: bytes) -> None:
        """Some events; nothing is not written, since an empty chunk is the end."""
        if events and not self._cycle.response_complete:
            self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))

    def end(self, events: bytes = b"") -> None:
        """The last events; the connection is free for the next request."""
        cycle = self._cycle
        if cycle.response_complete:
            return
        last = b"%x\r\n%b\r\n" % (len(events), events) if events else b""
        self._transport.write(last + LAST_CHUNK)
        cycle.response_complete = True
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

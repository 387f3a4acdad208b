"""What clients are told whose connections no gateway takes: an error in their API's words, and when to come back."""

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn

from deployments.listener.quiet_server import QuietServer
from deployments.openai.errors import ApiError, anthropic_body

RETRY_AFTER_S = 5.0
"""Serve has a gateway up again within so long, if it can at all."""
BODY_PATIENCE_S = 2.0
"""A client that is answered while it still sends may not get to see the answer."""
END_PATIENCE_S = 2.0
HANDSHAKE = b"\x16"
"""The first byte of a TLS connection; no method of HTTP begins with it."""
ERROR = ApiError(
    503, "no gateway takes requests now; try again later", "no_gateway_available", retry_after_s=RETRY_AFTER_S
)


async def refuse(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI application that refuses every request."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BODY_PATIENCE_S):
            while (await receive()).get("more_body"):
                pass
    response = ERROR.response(anthropic_body(ERROR) if scope["path"].startswith("/v1/messages") else b"")
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def _speaks_tls(connection: socket.socket) -> bool:
    """Whether its client has begun a handshake, and would take what it is told for nonsense."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == HANDSHAKE
    except OSError:  # nothing has come, or it has gone
        return False


class Refusals:
    """Answers connections that no gateway takes; who wants TLS, of which it has no certificate, is closed."""

    def __init__(self) -> None:
        config = uvicorn.Config(refuse, http="httptools", lifespan="off", access_log=False, log_config=None)
        self._server = QuietServer(config)

    async def answer_all(self, listening: socket.socket) -> int:
        """Refuses what waits to be accepted; returns how many connections that were."""
        loop, number = asyncio.get_running_loop(), 0
        with contextlib.suppress(OSError):  # none waits any more, or no descriptor is left
            while True:
                connection, _ = listening.accept()
                connection.setblocking(False)
                number += 1
                if _speaks_tls(connection):
                    connection.close()
                    continue
                await loop.connect_accepted_socket(self._server.protocol, connection)
        return number

    async def close(self) -> None:
        """Ends with what is under way."""
        await self._server.close(END_PATIENCE_S)

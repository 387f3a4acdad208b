"""A gateway that takes requests itself, where Serve runs no proxy: ``proxy_location: Disabled``.

All gateways of a node listen at one port, and the kernel deals the connections out among them (``SO_REUSEPORT``): no
process and no copy of the bytes lies between a client and its gateway. What HAProxy does beside that is given up: it
sends a connection where there is least to do, tries another gateway when one is gone, and takes none of a gateway that
is about to end.
"""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import uvicorn

from deployments.http.hot_routes import HotRoutes
from policies.errors import ConfigError

LOGGER = logging.getLogger("ray.serve")
BACKLOG = 2048


class Address(NamedTuple):
    """Where requests are taken.

    Args:
        host: Of this node.
        port: The same on every node.
        keep_alive_s: How long a connection without a request is kept.
    """

    host: str
    port: int
    keep_alive_s: int


class NoOwnPort:
    """Serve's proxies take the requests."""

    async def close(self, patience_s: float) -> None:
        """There is nothing to close."""


class OwnPort(NoOwnPort):
    """Serves an ASGI application, and its hot routes past it. Make it with :meth:`open`."""

    def __init__(self, server: "_Server", listening: socket.socket) -> None:
        self._server = server
        self._listening = listening
        self._serving = asyncio.get_running_loop().create_task(server.serve([listening]))

    @classmethod
    def open(cls, app: Any, address: Address) -> Self:
        """Takes requests from now on.

        Args:
            app: The application.
            address: Where.

        Raises:
            ConfigError: Another program listens there, or the address is none of this node's.
        """
        listening = _listening(address)
        config = uvicorn.Config(
            app,
            http=HotRoutes,
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=address.keep_alive_s,
        )
        LOGGER.info("requests are taken at %s:%s, without a proxy", address.host, address.port)
        return cls(_Server(config), listening)

    async def close(self, patience_s: float) -> None:
        """Takes no more connections, and waits so long for the answers that are under way."""
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=patience_s)
        self._serving.cancel()
        await asyncio.wait([self._serving])
        for (
            each
        ) in self._server.servers:  # cancelled, uvicorn leaves the event loop listening at a socket that is closed
            each.close()
        self._listening.close()


class _Server(uvicorn.Server):
    """Signals are Ray's to handle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(address: Address) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind(address[:2])
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(
            "http_options.port", address.port, f"a port that is free at {address.host} ({error.strerror})"
        ) from error
    return listening

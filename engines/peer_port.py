"""A port at which other engines reach this one, to say something about one request on a connection of its own."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom

import msgspec

KEEPALIVE_S = 5
CONNECTION_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""First and last port that the system gives to who asks for none."""
LAST_PORT = 65_535
MOST_DRAWS = 200

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Talks to one engine to the end; the connection is closed afterwards."""


class PeerPort:
    """Listens. A connection lasts as long as what it is about, so that each side notices when the other has died.

    Args:
        serve: Called with each connection.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve_peer = serve
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._host = ""

    async def listen(self, host: str) -> None:
        """Opens a free port.

        Args:
            host: Address at which other engines reach this one.
        """
        self._host = host
        self._server = await asyncio.start_server(self._serve, host, 0)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; there is none before :meth:`listen`."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return self._host, port

    @property
    def num_connections(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def stop(self) -> None:
        """Drops every connection, as the death of the process would."""
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Stops, and waits until no connection is left."""
        self.stop()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        keep_alive(writer)
        try:
            await self._serve_peer(reader, writer)
        except (
            OSError,
            ValueError,
            msgspec.MsgspecError,
        ):  # the peer died in the middle of a line, or it was none of ours
            pass
        finally:
            del self._connections[task]
            writer.close()


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """A machine that vanishes says no goodbye; the operating system asks after it."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)


def free_port(host: str, in_a_row: int = 1) -> int:
    """The first of so many free ports in a row, of those that the system gives to no connection by itself.

    Mostly a port is bound seconds after it was chosen, by another process: any other one could be somebody's by then.
    """
    draw, ports = SystemRandom(), _never_given()
    for _ in range(MOST_DRAWS if len(ports) > in_a_row else 0):
        if first := _first_of(host, draw.choice(ports), in_a_row):
            return first
    while True:
        if first := _first_of(host, 0, in_a_row):
            return first


def _first_of(host: str, port: int, in_a_row: int) -> int:
    """The port, if it and those after it are free; 0 is any that is. 0 when one of them is taken."""
    with ExitStack() as probes:
        for number in range(in_a_row):
            probe = probes.enter_context(socket.socket())
            try:
                probe.bind((host, port + number if port else 0))
            except (OSError, OverflowError):  # somebody has the next one, or there is none
                return 0
            port = port or int(probe.getsockname()[1])
    return port


def _never_given() -> range:
    """Ports above those that connections get; none where the system does not say which these are."""
    try:
        last = int(CONNECTION_PORTS.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return range(0)
    return range(last + 1, LAST_PORT + 1)

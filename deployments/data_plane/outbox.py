"""How a connection's messages leave: all of one turn of the event loop together."""

import asyncio
import logging
import socket
from typing import cast

from deployments.data_plane.frames import FrameError
from deployments.data_plane.messages import FromGateway, FromReplica, Given, frame_of
from deployments.wire.inner_hop import Failure
from policies.decisions import Reason

LOGGER = logging.getLogger("ray.serve")
KEEPALIVE_S = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""A peer whose machine has gone is noticed after 11 s, and after as long where something is under way to it."""
USER_TIMEOUT_MS = 11_000


class Outbox:
    """Gathers what one end has to say in one turn of the event loop, and writes it as one frame.

    Args:
        transport: The connection.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._messages: list[FromGateway | FromReplica] = []

    def put(self, message: FromGateway | FromReplica) -> None:
        """It leaves when all that can run now has run."""
        if not self._messages:
            self._loop.call_soon(self._flush)
        self._messages.append(message)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        try:
            self._transport.write(frame_of(messages))
        except FrameError:
            self._write_each(messages)

    def _write_each(self, messages: list[FromGateway | FromReplica]) -> None:
        """They are too much for one frame. An item that is too much by itself ends its stream, and no other."""
        for message in messages:
            try:
                self._transport.write(frame_of([message]))
            except FrameError as error:
                LOGGER.error("a message can't be sent: %s", str(error))
                if not isinstance(message, Given):
                    self._transport.abort()
                    return
                said = "the answer is too long to be sent in one piece; ask for fewer logprobs"
                failed = Given(message.stream, Failure(Reason.INVALID_REQUEST, said))
                self._transport.write(frame_of([failed]))


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Has the kernel notice a machine that has gone, and send what there is at once."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is None or connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_S.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

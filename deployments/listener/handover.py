"""How a listener and a gateway of its node hand each other the socket that clients connect to.

They meet at a Unix socket with an abstract name, which is of the same network namespace as the port itself, and hang up
on processes of another user. A gateway joins; the listener answers with a slot, and passes the listening socket and the
page of loads along (``SCM_RIGHTS``). The connection then stays, and its end says that the other process has gone. A
gateway that has a slot already brings them: a listener that was started anew may have only what gateways bring.
"""

import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from deployments.listener.messages import Message

MAX_MESSAGE_BYTES = 4096
NUM_DESCRIPTORS = 2
CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end (``SO_PEERCRED``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What came over.

    Args:
        message: What was said.
        descriptors: What was passed along; the receiver owns them.
    """

    message: Message
    descriptors: list[int] = field(default_factory=list)

    def drop(self) -> None:
        """Closes what was passed along."""
        for each in self.descriptors:
            os.close(each)


def new_socket() -> socket.socket:
    """One end, which never blocks and keeps messages apart."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.setblocking(False)
    return end


def is_of_this_user(end: socket.socket) -> bool:
    """Whether the process at the other end is of the same user as this one."""
    said = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(said)
    return bool(user == os.getuid())


def send(end: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Says something, and passes descriptors along.

    Raises:
        OSError: The other end has gone.
    """
    socket.send_fds(end, [msgspec.json.encode(message)], [*descriptors], socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> Received | None:
    """What the other end has said; ``None``: it has gone, or makes no sense.

    Raises:
        BlockingIOError: It has said nothing yet.
    """
    try:
        said, descriptors, _, _ = socket.recv_fds(end, MAX_MESSAGE_BYTES, NUM_DESCRIPTORS)
    except ConnectionError:
        return None
    with suppress(msgspec.MsgspecError):
        return Received(message=msgspec.json.decode(said, type=Message), descriptors=descriptors)
    for each in descriptors:
        os.close(each)
    return None

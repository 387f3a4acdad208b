"""The rest of a body that nobody reads, since its request is refused: the kernel throws it away.

What is left of a request stands before the next one, or the end, and a client may not listen before it has sent all. To
read eight megabytes takes a gateway 3 ms of copies, into the process, an object and the parser. ``MSG_TRUNC`` takes
bytes off a TCP connection without a copy.
"""

import asyncio
import socket
from collections.abc import Callable

AT_ONCE_BYTES = 1 << 20
"""Taken off before the event loop does something else: at the most what a socket keeps."""
NOWHERE = memoryview(bytearray(AT_ONCE_BYTES))
"""Nothing is written there, so that it takes no memory; Python wants to see the room."""


class NothingDiscarded:
    """All that comes is read."""

    def close(self) -> None:
        """There is nothing to stop."""


class DiscardedBody(NothingDiscarded):
    """Throws bytes of a connection away until so many are gone, or the client is; the transport rests meanwhile.

    It looks at a duplicate of the descriptor: event loops do not let others look at a transport's own.

    Args:
        transport: A TCP connection's, without TLS, with nothing read that its protocol has not been given.
        num_bytes: That are left.
        came: Is told of bytes that come.
        is_over: Called once they all are gone, and not if the client is: the transport is told of that.

    Raises:
        OSError: No descriptor is left. The transport goes on as before.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        num_bytes: int,
        came: Callable[[int], None],
        is_over: Callable[[], None],
    ) -> None:
        own: socket.socket = transport.get_extra_info("socket")
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._num_bytes = num_bytes
        self._came = came
        self._is_over = is_over
        self._connection = socket.fromfd(own.fileno(), own.family, own.type)
        self._connection.setblocking(False)
        transport.pause_reading()
        self._loop.add_reader(self._connection, self._discard)

    def close(self) -> None:
        """Stops, wherever it is; the transport may read again."""
        if self._connection.fileno() >= 0:
            self._loop.remove_reader(self._connection)
            self._connection.close()

    def _discard(self) -> None:
        try:
            taken = self._connection.recv_into(NOWHERE, min(self._num_bytes, AT_ONCE_BYTES), socket.MSG_TRUNC)
        except BlockingIOError:
            return
        except OSError:
            self._abort()
            return
        if not taken:  # which the transport hears, too
            self.close()
            self._transport.resume_reading()
            return
        self._num_bytes -= taken
        self._came(taken)
        if not self._num_bytes:
            self.close()
            self._transport.resume_reading()
            self._is_over()
        elif self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._abort()  # uvloop tells of a reset once, though bytes that came before it are still there

    def _abort(self) -> None:
        self.close()
        self._transport.abort()


NOTHING_DISCARDED = NothingDiscarded()

"""Where an engine core publishes its KV events, and how they are read: a socket in a folder that is nobody else's."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import zmq

MOST_UNREAD_STEPS = 100_000
"""As many as the engine core keeps, too."""


class NoKvEventFeed:
    """The engine publishes none."""

    def batches(self) -> Iterator[Any]:
        """There are none."""
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class KvEventFeed(NoKvEventFeed):
    """Reads what is there, and never waits for more.

    Args:
        decode: Makes a batch of what was published.

    Attributes:
        endpoint: Where the engine core is to publish; it opens that.
    """

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._folder = tempfile.mkdtemp(prefix="spillway-kv-events-")
        self.endpoint = f"ipc://{self._folder}/events"
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set_hwm(MOST_UNREAD_STEPS)
        self._socket.subscribe("")
        self._socket.connect(self.endpoint)

    def batches(self) -> Iterator[Any]:
        """All that have come since this was last asked, in order."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self._decode(frames[-1])

    def close(self) -> None:
        """The engine core is told nothing: it may be gone."""
        self._socket.close(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

"""How fast a client reads: at once, or as slowly as a phone on a bad line."""

import asyncio
import math
import socket
from collections.abc import AsyncIterator

from aiohttp import AddrInfoType, StreamReader

SMALL_BUFFER_BYTES = 4096
"""Of a slow reader's socket: with the usual one, the machine would read on for it."""
READS_PER_S = 20


class Reading:
    """Reads answers.

    Args:
        bytes_per_s: How fast; infinite: whatever has come, at once.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s

    def socket(self, address: AddrInfoType) -> socket.socket:
        """A connection's socket, for aiohttp."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        if math.isfinite(self._bytes_per_s):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        return made

    async def pieces(self, content: StreamReader) -> AsyncIterator[bytes]:
        """What comes, piece by piece, to its end."""
        if math.isinf(self._bytes_per_s):
            async for data in content.iter_any():
                yield data
            return
        most_bytes = max(1, int(self._bytes_per_s / READS_PER_S))
        while data := await content.read(most_bytes):
            yield data
            await asyncio.sleep(len(data) / self._bytes_per_s)

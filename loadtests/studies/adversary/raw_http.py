"""A client that sends whatever bytes it is given, and does not mind how it is treated."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

PATIENCE_S = 60.0
NO_ANSWER = 0
"""In the place of a status: the connection was closed, or nothing came in time."""


def request(path: str, body: bytes, headers: Mapping[str, str], *, method: str = "POST") -> bytes:
    """A whole request."""
    fields = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    fields.setdefault("content-length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1", "replace") + body


async def ask(port: int, data: bytes, patience_s: float = PATIENCE_S) -> int:
    """Sends it over a connection of its own and reads the answer; its status."""
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await _exchange(reader, writer, data)
            finally:
                writer.close()
    return NO_ANSWER


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> int:
    writer.write(data)
    with suppress(ConnectionError):  # it may have been refused before it was read
        await writer.drain()
    parts = (await reader.readline()).split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/"):
        return NO_ANSWER
    length = None
    while line := (await reader.readline()).strip().lower():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    with suppress(asyncio.IncompleteReadError):
        await (reader.read() if length is None else reader.readexactly(length))
    return int(parts[1])

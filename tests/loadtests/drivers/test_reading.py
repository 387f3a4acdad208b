"""How fast a client reads."""

import asyncio
import math
import socket

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from loadtests.drivers.http_driver import READS_PER_S, SMALL_BUFFER_BYTES, Reading

ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))
ANSWER = bytes(range(256)) * 10


async def read(bytes_per_s: float) -> list[bytes]:
    loop = asyncio.get_running_loop()
    content = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    content.feed_data(ANSWER)
    content.feed_eof()
    return [each async for each in Reading(bytes_per_s).pieces(content)]


async def test_whoever_reads_at_once_gets_what_has_come() -> None:
    assert await read(math.inf) == [ANSWER]


async def test_a_slow_reader_takes_a_little_at_a_time_and_pauses_as_long_as_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []
    sleep, reader = asyncio.sleep, asyncio.current_task()

    async def pause(seconds: float) -> None:
        if asyncio.current_task() is reader:
            pauses_s.append(seconds)
        else:  # whoever else sleeps meanwhile, maybe in another thread's loop
            await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    pieces = await read(1000.0)

    assert b"".join(pieces) == ANSWER
    assert max(map(len, pieces)) == 1000 / READS_PER_S
    assert sum(pauses_s) == pytest.approx(len(ANSWER) / 1000.0)


def test_only_a_slow_reader_has_a_small_buffer() -> None:
    with Reading(math.inf).socket(ADDRESS) as usual, Reading(1000.0).socket(ADDRESS) as small:
        sizes = [each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for each in (usual, small)]
    assert sizes[1] <= 2 * SMALL_BUFFER_BYTES < sizes[0]  # Linux doubles what it is told

"""A client has seconds for half a request, and as long as it keeps sending for a long one."""

import asyncio
import heapq
from collections.abc import Callable
from typing import cast

import pytest

from deployments.http import request_pace
from deployments.http.request_pace import BYTES_PER_S, GRACE_S, MAX_HEAD_BYTES, RequestPace
from tests.deployments.listener.listeners import App, gateway, listening, new_address


class Timer:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualLoop:
    """Tells a time of its own, and calls when it comes."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._due: list[tuple[float, int, Timer, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer()
        heapq.heappush(self._due, (at_s, len(self._due), timer, call))
        return timer

    def run_until(self, at_s: float) -> None:
        while self._due and self._due[0][0] <= at_s:
            self.now_s, _, timer, call = heapq.heappop(self._due)
            if not timer.is_cancelled:
                call()
        self.now_s = at_s


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


def pace(loop: VirtualLoop) -> tuple[RequestPace, list[float]]:
    slow_at_s: list[float] = []
    made = RequestPace(cast(asyncio.AbstractEventLoop, loop), lambda: slow_at_s.append(loop.now_s))
    return made, slow_at_s


def test_a_connection_that_sends_nothing_is_too_slow_after_the_grace(loop: VirtualLoop) -> None:
    made, slow_at_s = pace(loop)
    made.begin()
    loop.run_until(99.0 + GRACE_S)
    assert not slow_at_s

    loop.run_until(1000.0)

    assert slow_at_s == [100.0 + GRACE_S]
    assert not made.is_waiting


def test_what_comes_steadily_has_as_long_as_it_takes(loop: VirtualLoop) -> None:
    made, slow_at_s = pace(loop)
    made.begin()
    for second in range(600):
        loop.run_until(100.0 + second)
        made.count(int(BYTES_PER_S) + 1)
    assert not slow_at_s
    made.end()
    loop.run_until(10_000.0)
    assert not slow_at_s


def test_a_byte_now_and_then_helps_nobody(loop: VirtualLoop) -> None:
    made, slow_at_s = pace(loop)
    made.begin()
    for second in range(0, 600, 10):
        loop.run_until(100.0 + second)
        made.count(1)
    assert slow_at_s == pytest.approx([100.0 + GRACE_S], abs=0.1)


def test_the_next_request_of_a_connection_has_its_own_time(loop: VirtualLoop) -> None:
    made, slow_at_s = pace(loop)
    made.begin()
    made.count(10**9)
    made.end()
    loop.run_until(500.0)
    made.begin()
    made.begin()

    loop.run_until(600.0)

    assert slow_at_s == [500.0 + GRACE_S]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_pace, "GRACE_S", 0.2)


HALVES = {
    "nothing": b"",
    "half a head": b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-",
    "half a body": b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_half_a_request_is_answered_and_closed(half: bytes) -> None:
    async with listening(new_address()) as address, gateway(App("a", may_answer=False), address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(half)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_too_slow"' in answer


@pytest.mark.usefixtures("hasty")
async def test_a_request_that_is_whole_is_waited_for() -> None:
    app = App("a", may_answer=False)
    async with listening(new_address()) as address, gateway(app, address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.6)
        app.may_answer.set()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * MAX_HEAD_BYTES, b"431", b"headers_too_long"),
        (b"no HTTP at all\r\n\r\n", b"400", b"invalid_http"),
    ],
    ids=["endless headers", "no HTTP"],
)
async def test_what_is_no_request_is_told_so_in_json(sent: bytes, status: bytes, code: bytes) -> None:
    async with listening(new_address()) as address, gateway(App("a"), address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b'"code":"' + code in answer


@pytest.mark.usefixtures("hasty")
async def test_half_of_the_next_request_does_not_cut_the_answer_to_this_one() -> None:
    app = App("a", may_answer=False)
    async with listening(new_address()) as address, gateway(app, address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /he")
        await asyncio.sleep(0.6)
        app.may_answer.set()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer, "and the half is told so after that"

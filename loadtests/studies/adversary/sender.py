"""An attacker, in a process of its own: its work is not to be taken for the gateways'."""

import asyncio
import random
import resource
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context

from loadtests.studies.adversary.bodies import DEAR, honest
from loadtests.studies.adversary.raw_http import ask, request

MANY_FILES = 16_384
"""Connections that one process may hold."""
CONNECT_S = 5.0
_half_requests: list[socket.socket] = []
"""Of the sender's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What is sent, a Poisson process.

    Args:
        port: Where to.
        model: What it asks for.
        headers: Of each request.
        rate_rps: How often.
        for_s: How long.
        seed: Of the times.
        kinds: Of dear bodies, in turn; none: what everybody sends.
    """

    port: int
    model: str
    headers: Mapping[str, str]
    rate_rps: float
    for_s: float
    seed: int
    kinds: Sequence[str] = ()


@dataclass(slots=True)
class Statuses:
    """What came of requests.

    Args:
        by_kind: How often each status came, by what was sent.
    """

    by_kind: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, kind: str, status: int) -> None:
        """An answer to one of them."""
        self.by_kind.setdefault(kind, Counter())[status] += 1

    def total(self) -> Counter[int]:
        """Whatever was sent."""
        return sum(self.by_kind.values(), Counter[int]())


def send(sending: Sending) -> Statuses:
    """Sends it all, and waits for the answers; each request has a connection of its own."""
    return asyncio.run(_send(sending))


def prepare(sending: Sending) -> int:
    """Makes what is sent, which takes as much as sending it; how many bytes that is."""
    return sum(map(len, _requests(sending).values()))


def _requests(sending: Sending) -> dict[str, bytes]:
    kinds = sending.kinds or ("",)
    return {kind: _request(kind, sending.model, tuple(sorted(sending.headers.items()))) for kind in kinds}


@cache
def _request(kind: str, model: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    path, body = DEAR.get(kind, ("/v1/completions", honest))
    return request(path, body(model), dict(headers))


async def _send(sending: Sending) -> Statuses:
    said = _requests(sending)
    statuses, rng, loop = Statuses(), random.Random(sending.seed), asyncio.get_running_loop()
    kinds, asking = list(said), set[asyncio.Task[None]]()

    async def one(kind: str) -> None:
        statuses.add(kind, await ask(sending.port, said[kind]))

    begun_s = due_s = loop.time()
    for number in range(round(sending.rate_rps * sending.for_s)):
        due_s += rng.expovariate(sending.rate_rps)
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        if loop.time() - begun_s > 2 * sending.for_s:
            break  # it is held up so much that it is no attack any more
        asking.add(task := asyncio.create_task(one(kinds[number % len(kinds)])))
        task.add_done_callback(asking.discard)
    while asking:
        await asyncio.wait(asking)
    return statuses


def _open_half_requests(port: int, num_connections: int) -> int:
    """How many connections could be opened, with half a request on each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(MANY_FILES, most) if most > 0 else MANY_FILES, most))
    with suppress(OSError):
        for _ in range(num_connections):
            _half_requests.append(connection := socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S))
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-len")
    return len(_half_requests)


def _close_half_requests() -> int:
    """Closes them all; how many the other end had not closed."""
    num_open = sum(map(_is_open, _half_requests))
    for each in _half_requests:
        each.close()
    _half_requests.clear()
    return num_open


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False  # whatever was said, nothing follows


class Sender:
    """The process.

    Args:
        executor: It alone.
    """

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def prepare(self, sending: Sending) -> "Future[int]":
        """Begins to make what is sent; how many bytes that is."""
        return self._executor.submit(prepare, sending)

    def send(self, sending: Sending) -> "Future[Statuses]":
        """Begins; what came of it."""
        return self._executor.submit(send, sending)

    def open_half_requests(self, port: int, num_connections: int) -> "Future[int]":
        """Begins; how many connections it has, with half a request on each."""
        return self._executor.submit(_open_half_requests, port, num_connections)

    def close_half_requests(self) -> "Future[int]":
        """Begins; how many of them were still open."""
        return self._executor.submit(_close_half_requests)


@contextmanager
def sender() -> Iterator[Sender]:
    """For as long as the block lasts."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield Sender(executor)

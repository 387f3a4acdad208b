"""Bytes that are not quite HTTP: does anything but an error come of them?"""

import asyncio
import random
from collections.abc import Iterator

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.bodies import honest
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.raw_http import NO_ANSWER, ask, request
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import UNLIMITED, Target

NAME, TRACEBACK = "malformed", "Traceback (most recent call last)"
NUM_MUTATED, SEED = 1_500, 11
MOST_CHANGES = 6
PATIENCE_S = 2.0
"""For an answer to what may be half a request; a gateway waits for the rest far longer."""
AT_A_TIME = 16
LEAST_ANSWERED = 500
ODD = (
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/3.0\r\nhost: a\r\n\r\n",
    b"GET http://elsewhere/health HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /%00%ff HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\nz\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nexpect: 200-maybe\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    b"\x00" * 70_000,
)
"""Each once: lengths that contradict one another, lines without an end, other protocols."""
ODD_HEADERS = (
    {"x-session-id": "sch\u00f6n"},
    {"x-session-id": "\x80\xff"},
    {"x-priority": "\u00e9"},
    {"idempotency-key": "k" * 10_000},
    {"idempotency-key": "k", "last-event-id": "\u00ff.-1"},
    {"x-request-timeout-seconds": "1e999"},
    {"x-request-deadline": "never"},
    {"content-type": "text/html; charset=\u00ff"},
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-zz"},
)
"""On a request that is right otherwise."""


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Sends all of it, and as much that is right but for a few bytes."""
    tell(f"{NAME}: {NUM_MUTATED:,} requests with some wrong bytes")
    sent, before = list(_all(target)), _num_tracebacks(target)
    statuses = asyncio.run(_send(target.port, sent))
    num_faults = sum(status != NO_ANSWER and not 200 <= status < 500 for status in statuses)
    is_up = asyncio.run(ask(target.port, request("/ready", b"", {}, method="GET")))
    num_tracebacks = _num_tracebacks(target) - before
    return [
        Finding(attack=NAME, measured="sent", now=len(sent)),
        Finding(
            attack=NAME,
            measured="of them answered; the others are half requests, or none at all",
            now=sum(status != NO_ANSWER for status in statuses),
            at_least=LEAST_ANSWERED,
        ),
        Finding(attack=NAME, measured="answers with a 5xx", before="500 for a session id", now=num_faults, at_most=0),
        Finding(attack=NAME, measured="tracebacks in the logs of Serve's replicas", now=num_tracebacks, at_most=0),
        Finding(attack=NAME, measured="/ready afterwards, HTTP status", now=is_up, at_most=200, at_least=200),
    ]


def _num_tracebacks(target: Target) -> int:
    return sum(log.read_text(errors="replace").count(TRACEBACK) for log in target.logs())


async def _send(port: int, sent: list[bytes]) -> list[int]:
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(data: bytes) -> int:
        async with places:
            return await ask(port, data, PATIENCE_S)

    return await asyncio.gather(*map(one, sent))


def _all(target: Target) -> Iterator[bytes]:
    rng, headers, body = random.Random(SEED), target.headers(UNLIMITED), honest(target.model)
    yield from ODD
    for odd in ODD_HEADERS:
        yield request("/v1/completions", body, {**headers, **odd})
    whole = request("/v1/completions", body, headers)
    for _ in range(NUM_MUTATED):
        yield _mutated(whole, rng)


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """The same with a few bytes changed, put in or left out."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        place, kind = rng.randrange(len(changed)), rng.randrange(3)
        if kind == 0:
            changed[place] = rng.randrange(256)
        elif kind == 1:
            changed.insert(place, rng.randrange(256))
        else:
            del changed[place]
    return bytes(changed)


ATTACK = Attack(NAME, 1, run)

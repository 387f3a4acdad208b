"""What attacks send, and how what comes of them is judged, against a gateway in process and servers of one answer."""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from loadtests.simulation.verdict import Verdict
from loadtests.studies.adversary import __main__ as adversary
from loadtests.studies.adversary.attacks.malformed import _mutated
from loadtests.studies.adversary.bodies import DEAR, MIB, honest
from loadtests.studies.adversary.finding import Finding, verdict_of
from loadtests.studies.adversary.raw_http import NO_ANSWER, ask, request
from loadtests.studies.adversary.sender import Sending, send
from tests.deployments.gateway_in_process import gateway_in_process
from tests.tables import for_each

MODEL = "tiny-llama"
TAKEN = ("1 MiB to count", "20,000 choices")
"""Dear as they are: a text of any length may be counted, and what a grammar is too long is the engine's to say."""


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with gateway_in_process() as client:
        yield client


def sent(http: httpx.Client, kind: str) -> httpx.Response:
    path, body = DEAR[kind]
    return http.post(path, content=body(MODEL), headers={"content-type": "application/json"}, timeout=120)


@for_each("kind", [kind for kind in DEAR if kind not in TAKEN])
def test_what_is_dear_is_refused_by_a_gateway(http: httpx.Client, kind: str) -> None:
    answer = sent(http, kind)

    assert answer.status_code == 400, answer.text[:200]
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_what_a_gateway_takes_it_answers(http: httpx.Client) -> None:
    assert sent(http, "1 MiB to count").json()["count"] > MIB / 10
    assert sent(http, "20,000 choices").status_code == 200


def test_what_everybody_sends_is_answered(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=honest(MODEL), headers={"content-type": "application/json"})

    assert answer.status_code == 200


@for_each("kind", list(DEAR))
def test_every_body_is_one_that_a_gateway_reads_to_its_end(kind: str) -> None:
    assert len(DEAR[kind][1](MODEL)) <= 8 * MIB


@for_each(
    ("finding", "check", "verdict"),
    [
        (Finding(attack="a", measured="m", now=1.0, at_most=2.0), "<= 2", "met"),
        (Finding(attack="a", measured="m", now=3.0, at_most=2.0), "<= 2", "MISSED"),
        (Finding(attack="a", measured="m", now=1.0, at_least=2.0), ">= 2", "MISSED"),
        (Finding(attack="a", measured="m", now=math.nan, at_most=2.0, unit="ms"), "<= 2 ms", "MISSED"),
        (Finding(attack="a", measured="m", now=1.0), "", ""),
    ],
)
def test_a_number_is_held_against_its_check(finding: Finding, check: str, verdict: str) -> None:
    assert (finding.check, finding.verdict) == (check, verdict)


@for_each(
    ("numbers", "verdict"),
    [((1.0, 1.0), Verdict.PASS), ((1.0, 3.0), Verdict.FAIL), ((1.0, math.nan), Verdict.INVALID), ((), Verdict.INVALID)],
)
def test_all_checks_have_to_be_met_and_nothing_measured_proves_nothing(
    numbers: tuple[float, ...], verdict: Verdict
) -> None:
    assert verdict_of([Finding(attack="a", measured="m", now=each, at_most=2.0) for each in numbers]) is verdict


async def _serving(answer: bytes) -> tuple[asyncio.Server, int, list[bytes]]:
    """A server that gives everybody this answer; what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1], asked


@for_each(
    ("answer", "status"),
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\nx", 429),
        (b"HTTP/1.1 200 OK\r\n\r\n", 200),
        (b"", NO_ANSWER),
        (b"?\r\n", NO_ANSWER),
    ],
)
async def test_a_raw_client_tells_the_status_or_that_there_was_none(answer: bytes, status: int) -> None:
    server, port, asked = await _serving(answer)
    async with server:
        got = await ask(port, request("/p", b"{}", {"authorization": "Bearer k"}))

    assert got == status
    assert asked[0].startswith(b"POST /p HTTP/1.1\r\n")
    assert b"content-length: 2\r\n" in asked[0]
    assert asked[0].endswith(b"\r\n\r\n{}")


async def test_a_sender_takes_kinds_in_turn_and_counts_what_each_was_told() -> None:
    server, port, _ = await _serving(b"HTTP/1.1 413 Too Long\r\n\r\n")
    kinds = ("200,000 brackets", "50,000 biases")
    sending = Sending(port=port, model=MODEL, headers={}, rate_rps=200.0, for_s=0.05, seed=1, kinds=kinds)
    async with server:
        statuses = await asyncio.to_thread(send, sending)

    assert statuses.by_kind == {kind: Counter({413: 5}) for kind in kinds}
    assert statuses.total() == Counter({413: 10})


def test_a_request_with_wrong_bytes_differs_in_a_few() -> None:
    whole = request("/v1/completions", honest(MODEL), {})
    changed = [_mutated(whole, random.Random(seed)) for seed in range(50)]

    assert len(set(changed)) > 45
    assert all(abs(len(each) - len(whole)) <= 6 for each in changed)


def test_help_names_every_attack(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        adversary.main(["--help"])
    said = capsys.readouterr().out

    assert all(name in said for name in adversary.ATTACKS)


def test_bodies_ask_for_the_model() -> None:
    for kind, (_, body) in DEAR.items():
        if kind != "200,000 brackets":
            assert json.loads(body("another"))["model"] == "another"

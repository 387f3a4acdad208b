"""Requests that look as if an engine failed: does a tenant get replicas ejected?"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.raw_http import ask, request
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import UNLIMITED, Target
from loadtests.watch.gateway_page import read

NAME = "replicas blamed"
TIMES = 48
"""Six for each of eight replicas, if they are spread evenly; five failures in a row are enough for an ejection."""
AT_A_TIME = 4
HURRY_S = 0.002
BLAMABLE: Mapping[str, Mapping[str, Any]] = {
    "stops longer than an inner message": {"stop": ["x" * 4_500_000]},
    "token ids that are none": {"prompt": [1 << 30]},
    "biases of tokens that are none": {"logit_bias": {str(1 << 30): 1}},
    "more biases than engines hold": {"logit_bias": {str(token): 1 for token in range(1_025)}},
    "more allowed tokens than engines hold": {"allowed_token_ids": list(range(1_025))},
    "more tokens that stop than engines hold": {"stop_token_ids": list(range(127)), "min_tokens": 1},
    "more bad words than engines hold": {"bad_words": ["bad"] * 65},
    "more tokens than fit": {"prompt": [7] * 140_000},
    "an answer in no time": {"timeout": HURRY_S, "max_tokens": 2_000, "ignore_eos": True},
    "a salt that is long": {"cache_salt": "s" * 5_000},
}
"""What is in the body of each."""


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Sends each many times, and clients that leave; what the gateways think of their replicas afterwards."""
    tell(NAME)
    before = read(target.running.url)
    statuses = asyncio.run(_send_all(target))
    after = target.running.at_rest().since(before)
    lost = [each.get("name", "") for each in target.running.pools]
    num_out = sum(read(target.running.url).sum("spillway_ejected_replicas", pool=str(pool)) for pool in lost)
    return [
        _finding(
            "ejections of replicas", after.sum("spillway_ejections_total"), "two of four replicas, by 16 requests"
        ),
        _finding("replicas that are out afterwards", num_out),
        _finding("probes of replicas that were spared for errors", after.sum("spillway_probes_total")),
        _finding("answers with a 5xx but 504, or none", statuses[True]),
    ]


async def _send_all(target: Target) -> Counter[bool]:
    """How many answers are faults of the server's, and how many are not; 504 is what was asked for."""
    asked = [_body(target, fields) for fields in BLAMABLE.values() for _ in range(TIMES)]
    places, faults = asyncio.Semaphore(AT_A_TIME), Counter[bool]()

    async def one(data: bytes) -> None:
        async with places:
            status = await ask(target.port, data)
        faults[status != 504 and not 200 <= status < 500] += 1

    async with asyncio.TaskGroup() as group:
        for data in asked:
            group.create_task(one(data))
        for _ in range(TIMES):
            group.create_task(_leave(target, places))
    return faults


async def _leave(target: Target, places: asyncio.Semaphore) -> None:
    """A client that goes when the answer has begun."""
    async with places:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(_body(target, {"stream": True, "max_tokens": 2_000, "ignore_eos": True}))
            await reader.readline()
            writer.transport.abort()


def _body(target: Target, fields: Mapping[str, Any]) -> bytes:
    body = {"model": target.model, "prompt": "Hello", "max_tokens": 4, **fields}
    return request("/v1/completions", json.dumps(body).encode(), target.headers(UNLIMITED))


def _finding(measured: str, now: float, before: str = "") -> Finding:
    return Finding(attack=NAME, measured=measured, before=before, now=now, at_most=0)


ATTACK = Attack(NAME, 1, run)

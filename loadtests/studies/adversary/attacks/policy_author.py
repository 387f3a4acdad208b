"""Policies that raise, answer nonsense, sleep and never return, in the place of all there are: is a request lost?"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.attacks import bad_policies
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.raw_http import NO_ANSWER, ask, request
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import VICTIM, Target
from loadtests.watch.gateway_page import read

NAME = "policy author"
NUM_ASKED, AT_A_TIME = 2_000, 8
QUESTIONS = ("admission", "shedding", "balancing", "queueing", "hedging", "ejection")
KINDS = ("raised", "nonsense", "slow", "stuck")
ARGS: Mapping[str, Any] = {
    "gateway": {"replicas": 2, "load_coordinator": True},
    "policies": {each: f"{bad_policies.__name__}:Bad{each.title()}" for each in QUESTIONS},
}
"""What is laid over the configuration: every question is somebody's own policy's."""
FAILURES = "spillway_policy_failures_total"


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Sends requests, and counts their outcomes and what the policies did."""
    tell(f"{NAME}: {NUM_ASKED:,} requests")
    before = read(target.running.url)
    statuses = asyncio.run(_send_all(target))
    since, page = target.running.at_rest().since(before), read(target.running.url)
    well = statuses[200]
    return [
        Finding(attack=NAME, measured="requests without an answer", before="one", now=statuses[NO_ANSWER], at_most=0),
        Finding(attack=NAME, measured="answers with 200", now=well, at_least=NUM_ASKED, at_most=NUM_ASKED),
        Finding(
            attack=NAME,
            measured="requests and attempts that have no end",
            before="`None` from a balancer left some",
            now=page.sum("spillway_requests_open"),
            at_most=0,
        ),
        Finding(
            attack=NAME,
            measured="questions whose policies failed, of six",
            now=sum(since.sum(FAILURES, question=each) > 0 for each in QUESTIONS),
            at_least=len(QUESTIONS),
        ),
        Finding(
            attack=NAME,
            measured=f"ways in which they did: {', '.join(KINDS)}",
            now=sum(since.sum(FAILURES, kind=each) > 0 for each in KINDS),
            at_least=len(KINDS),
        ),
        Finding(attack=NAME, measured="their failures", now=since.sum(FAILURES)),
    ]


async def _send_all(target: Target) -> Counter[int]:
    """How often each status came."""
    places, statuses = asyncio.Semaphore(AT_A_TIME), Counter[int]()
    body = {"model": target.model, "prompt": "Hello", "max_tokens": 4}
    data = request("/v1/completions", json.dumps(body).encode(), target.headers(VICTIM))

    async def one() -> None:
        async with places:
            statuses[await ask(target.port, data)] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_ASKED):
            group.create_task(one())
    return statuses


ATTACK = Attack(NAME, 1, run)

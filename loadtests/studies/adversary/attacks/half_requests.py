"""Thousands of connections with half a request on each: is there room for anybody else?"""

import statistics
import time

import httpx

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.raw_http import NO_ANSWER
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import VICTIM, Target

NAME = "half requests"
NUM_CONNECTIONS, NUM_ASKED = 5_000, 100
PATIENCE_S = 60.0
MOST_HEALTH_MS = 100.0


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Opens them, and asks ``/health`` and for a completion over new connections while they are open."""
    tell(f"{NAME}: {NUM_CONNECTIONS:,} connections")
    opening = sender.open_half_requests(target.port, NUM_CONNECTIONS)
    meanwhile_ms = []
    while not opening.done():
        meanwhile_ms.append(_health_ms(target))
    num_open = opening.result()
    health_ms = [_health_ms(target) for _ in range(NUM_ASKED)]
    status = _completion_status(target)
    num_left = sender.close_half_requests().result()
    said = f"slowest of {NUM_ASKED}, over new connections"
    return [
        Finding(attack=NAME, measured="connections that were opened", now=num_open, at_least=NUM_CONNECTIONS),
        Finding(
            attack=NAME,
            measured=f"/health while they are open, {said}",
            before="not answered from 4,150 on",
            now=max(health_ms),
            at_most=MOST_HEALTH_MS,
            unit="ms",
        ),
        Finding(
            attack=NAME,
            measured="/health while they are being opened, median",
            now=statistics.median(meanwhile_ms or health_ms),
            unit="ms",
        ),
        Finding(attack=NAME, measured="a completion meanwhile, HTTP status", now=status, at_most=200, at_least=200),
        Finding(attack=NAME, measured="of the connections still open then", now=num_left),
    ]


def _health_ms(target: Target) -> float:
    begun_s = time.perf_counter()
    try:
        httpx.get(f"{target.running.url}/health", timeout=PATIENCE_S).raise_for_status()
    except httpx.HTTPError:
        return float("inf")
    return 1e3 * (time.perf_counter() - begun_s)


def _completion_status(target: Target) -> int:
    body = {"model": target.model, "prompt": "Hello", "max_tokens": 2}
    url = f"{target.running.url}/v1/completions"
    try:
        return httpx.post(url, json=body, headers=target.headers(VICTIM), timeout=PATIENCE_S).status_code
    except httpx.HTTPError:
        return NO_ANSWER


ATTACK = Attack(NAME, 1, run)

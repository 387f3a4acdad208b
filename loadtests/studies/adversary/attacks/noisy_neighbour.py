"""One tenant sends what is dear to read, and another one's first tokens come late: how late?

In each round the victim has the same requests twice: beside an attacker, and beside an honest tenant that sends as many
requests as that. Rounds are compared in pairs. A third time they are beside a tenant without limits that sends what the
attacker sends: what the limits are worth.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import psutil

from loadtests.machine.cpu_by_process import cpu_s_by_process
from loadtests.machine.streaming_client import Load, random_prompt, run_load, stream_completion
from loadtests.machine.told_steps import Tell
from loadtests.results.comparison import compare
from loadtests.results.metrics import Better
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.bodies import DEAR
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.sender import Sender, Sending
from loadtests.studies.adversary.target import ATTACKER, HONEST, UNLIMITED, VICTIM, Target

NAME = "noisy neighbour"
VICTIMS_SHARE = 0.2
"""Of the capacity; whoever is beside the victim sends as often as it does."""
NUM_ROUNDS, PER_ROUND = 8, 260
"""Rounds, and the victim's requests in each part of one."""
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
CAPACITY_STREAMS, CAPACITY_REQUESTS = 32, 500
REFUSED_RPS, REFUSED_FOR_S = 40.0, 10.0
MOST_P50_RATIO, MOST_P99_RATIO, MOST_REFUSAL_MS = 1.2, 1.5, 2.0
"""A refusal's is milliseconds of a gateway's CPU."""


@dataclass(slots=True)
class _Part:
    """The victim beside one kind of neighbour, a value for each round.

    Args:
        neighbour: Its tenant.

    Attributes:
        p50_s: Median times to first token.
        p99_s: Their 99th percentiles.
        num_failed: Requests of the victim's that were not answered.
        statuses: What the neighbour was told.
    """

    neighbour: str
    p50_s: list[float] = field(default_factory=list)
    p99_s: list[float] = field(default_factory=list)
    num_failed: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Runs all rounds, and then sends what is refused, and nothing else."""
    tell(f"{NAME}: capacity")
    capacity_rps = _capacity_rps(target)
    parts = {each: _Part(each) for each in (ATTACKER, HONEST, UNLIMITED)}
    for number in range(NUM_ROUNDS):
        tell(f"{NAME}: round {number + 1}, {VICTIMS_SHARE:g} of {capacity_rps:.0f} requests/s")
        for part in parts.values() if number % 2 == 0 else reversed(parts.values()):
            _run(target, sender, part, VICTIMS_SHARE * capacity_rps, number)
    tell(f"{NAME}: what a refusal costs")
    refusal_ms = _refusal_ms(target, sender)
    return [
        *_ratios(parts),
        *_rest(parts),
        _finding("CPU of a gateway for a request that is refused", refusal_ms, MOST_REFUSAL_MS, unit="ms"),
    ]


def _capacity_rps(target: Target) -> float:
    """What a closed loop gets answered on this machine, whose cores the clients share."""
    load = Load(
        streams=CAPACITY_STREAMS,
        requests=CAPACITY_REQUESTS,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        headers=target.headers(VICTIM),
    )
    return CAPACITY_REQUESTS / asyncio.run(run_load(target.running.url, target.model, load)).wall_s


def _run(target: Target, sender: Sender, part: _Part, rate_rps: float, seed: int) -> None:
    """The victim's requests of one round beside a neighbour's."""
    sending = Sending(
        port=target.port,
        model=target.model,
        headers=target.headers(part.neighbour),
        rate_rps=rate_rps,
        for_s=PER_ROUND / rate_rps,
        seed=1000 + seed,
        kinds=() if part.neighbour == HONEST else tuple(DEAR),
    )
    sender.prepare(sending).result()
    beside = sender.send(sending)
    first_tokens_s = asyncio.run(_victims_requests(target, rate_rps, seed))
    part.statuses += beside.result().total()
    part.num_failed += PER_ROUND - len(first_tokens_s)
    part.p50_s.append(float(np.quantile(first_tokens_s, 0.5)))
    part.p99_s.append(float(np.quantile(first_tokens_s, 0.99)))
    target.running.at_rest()


async def _victims_requests(target: Target, rate_rps: float, seed: int) -> list[float]:
    """Times to first token of those that were answered; arrivals and prompts are those of the seed."""
    rng, loop, first_tokens_s = random.Random(seed), asyncio.get_running_loop(), list[float]()
    timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=target.headers(VICTIM), timeout=timeout, connector=connector) as session:

        async def one(prompt: Sequence[int], due_s: float) -> None:
            late_s = loop.time() - due_s
            try:
                sample = await stream_completion(session, target.running.url, target.model, prompt, OUTPUT_TOKENS)
            except (aiohttp.ClientError, TimeoutError, RuntimeError):
                return
            first_tokens_s.append(late_s + sample.ttft_s)

        due_s = loop.time()
        async with asyncio.TaskGroup() as group:
            for _ in range(PER_ROUND):
                due_s += rng.expovariate(rate_rps)
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                group.create_task(one(random_prompt(rng, PROMPT_TOKENS), due_s))
    return first_tokens_s


def _refusal_ms(target: Target, sender: Sender) -> float:
    """CPU of all gateways for each of many requests that are refused, less what they take when nothing comes."""

    def used_s() -> float:
        return sum(spent for name, spent in cpu_s_by_process(target.running.pid).items() if name.endswith(":gateway"))

    before_s = used_s()
    psutil.cpu_percent(REFUSED_FOR_S)
    idle_s = used_s() - before_s
    sending = Sending(
        port=target.port,
        model=target.model,
        headers={"authorization": "Bearer nobody"},
        rate_rps=REFUSED_RPS,
        for_s=REFUSED_FOR_S,
        seed=0,
        kinds=tuple(DEAR),
    )
    sender.prepare(sending).result()
    before_s = used_s()
    statuses = sender.send(sending).result().total()
    return 1e3 * (used_s() - before_s - idle_s) / statuses.total()


def _ratios(parts: dict[str, _Part]) -> list[Finding]:
    found = []
    for what, of, most in (("median", "p50_s", MOST_P50_RATIO), ("99th percentile", "p99_s", MOST_P99_RATIO)):
        honest = getattr(parts[HONEST], of)
        for neighbour, suffix in ((ATTACKER, ""), (UNLIMITED, ", by one without limits")):
            ratio = compare(getattr(parts[neighbour], of), honest, Better.LOWER).ratio
            said = f"victim's {what} first token against that beside an honest tenant{suffix}"
            found.append(_finding(f"{said}: ratio", ratio.value))
            if neighbour == ATTACKER:
                found.append(_finding(f"{said}: upper end of its interval", ratio.high, most))
        found.append(
            _finding(f"victim's {what} first token beside an honest tenant", 1e3 * float(np.mean(honest)), unit="ms")
        )
    return found


def _rest(parts: dict[str, _Part]) -> list[Finding]:
    told, honest = parts[ATTACKER].statuses, parts[HONEST].statuses
    return [
        _finding("victim's requests that were not answered", sum(each.num_failed for each in parts.values()), 0),
        _finding("honest tenant's requests that were not answered", honest.total() - honest[200], 0),
        _finding("answers to the attacker that are a 5xx or none", told.total() - _no_faults(told), 0),
        _finding("attacker's requests", told.total()),
        _finding("of them refused for its limits, with 429", told[429]),
    ]


def _no_faults(statuses: Counter[int]) -> int:
    return sum(number for status, number in statuses.items() if 200 <= status < 500)


def _finding(measured: str, now: float, at_most: float = float("inf"), *, unit: str = "") -> Finding:
    return Finding(attack=NAME, measured=measured, now=now, at_most=at_most, unit=unit)


ATTACK = Attack(NAME, NUM_ROUNDS + 2, run)

"""Tied attempts on Ray Serve: two gateways, emulated engines that ask one another for claims, and one that is sick.

Also what the gateways' logs are worth: they replay, and all holds in them that must, whatever clients and replicas have
done.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.event_log.frames import LogReader
from cluster.event_log.invariants import hear_log
from cluster.event_log.replay import replay
from deployments import faults
from tests.deployments.gateway_logs import LATE_S
from tests.deployments.live_cluster import Live, RayNodes, application, emulated_args, replicas_of
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "ties"
NUM_PREFILL = 3
NUM_GATEWAYS = 2


def application_args(logs: Path) -> dict[str, Any]:
    """``emulated.yaml`` with two gateways that keep logs and draw; every prompt has a place in two lines."""
    resources = {"gateway": 0.1}  # both beside the proxy, which prefers those
    gateways: dict[str, Any] = {"replicas": NUM_GATEWAYS, "event_log": str(logs), "seed": 5, "resources": resources}
    args = emulated_args(pools=(NUM_PREFILL, 1), **gateways)
    args["policies"]["balancing"] = "power_of_two"
    args["policies"]["hedging"] = {"name": "tied", "params": {"min_ahead_tokens": 0}}
    return args


WON_BY = ("false", "true")
Races = tuple[float, float, float]
"""Won by first attempts, won by second ones, and prompt tokens that were computed twice."""


@dataclass(frozen=True, slots=True)
class Tied:
    """The application, and what its gateways have written down."""

    live: Live
    logs: Path

    def races_shown(self) -> list[Races]:
        """What the page has of each gateway."""
        page = HTTP.get(f"{self.live.url}/metrics", timeout=30).raise_for_status().text
        samples = [each for family in text_string_to_metric_families(page) for each in family.samples]

        def total(name: str, **labels: str) -> float:
            return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

        def of(gateway: str) -> Races:
            first, second = (total("spillway_hedge_races_total", gateway=gateway, hedge_won=by) for by in WON_BY)
            return first, second, total("spillway_superseded_prompt_tokens_total", gateway=gateway)

        gateways = {each.labels["gateway"] for each in samples if each.name == "spillway_requests_open"}
        return [of(gateway) for gateway in gateways]

    def races_written(self) -> list[Races]:
        """What the gateways have written down of the same."""
        written: list[Races] = []
        for path in self.logs.iterdir():
            decisions = [each["decision"] for _, effects in _records(path) for each in effects if "decision" in each]
            races = [each for each in decisions if each["type"] == "Race"]
            num_hedges = sum(each["is_hedge"] for each in races)
            written.append((len(races) - num_hedges, num_hedges, sum(each["superseded_tokens"] for each in races)))
        return written

    def counts(self) -> Counter[str]:
        """How many events and effects of each kind there are by now, and how many ``Send`` of tied attempts."""
        counts: Counter[str] = Counter()
        for path in self.logs.iterdir():
            for event, effects in _records(path):
                counts.update([event, *(each["type"] for each in effects)])
                counts["tied"] += sum(bool(each.get("tied_to")) for each in effects)
        return counts

    def is_over(self) -> bool:
        """Whether every attempt has ended in one way, and no replica has work left."""
        counts = self.counts()
        ended = sum(counts[f"Attempt{how}"] for how in ("Finished", "Failed", "Withdrawn"))
        open_work = sum(self.live.metric(f"spillway_replica_{name}_tokens") for name in ("prefill", "kv"))
        return counts["Send"] == ended and open_work == 0

    def answers(self, num_requests: int, prompt_tokens: int) -> list[int]:
        """Sends different prompts at once, each on a connection of its own; the statuses."""

        async def send(client: httpx.AsyncClient, number: int) -> int:
            body = {"model": "tiny-llama", "prompt": [40 + number] * prompt_tokens, "max_tokens": 2}
            return (await client.post("/v1/completions", json=body)).status_code

        async def send_all() -> list[int]:
            limits = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(base_url=self.live.url, timeout=60, limits=limits) as client:
                return await asyncio.gather(*(send(client, number) for number in range(num_requests)))

        return asyncio.run(send_all())


def _records(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The name of each event in a log, and what came of it."""
    with path.open("rb") as file:
        for record in LogReader(file):
            yield type(record.event).__name__, msgspec.msgpack.decode(record.answer)


@pytest.fixture(scope="module")
def tied(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tied]:
    logs = tmp_path_factory.mktemp("events")
    with application(nodes, APPLICATION, application_args(logs)) as live:
        wait_until(lambda: _num_ready(live.url) == 4 * NUM_GATEWAYS, "every gateway knows its replicas")
        yield Tied(live, logs)


def _num_ready(url: str) -> int:
    """How many of several looks find a gateway that sees every replica."""
    return sum(replicas_of(url) == {"prefill": NUM_PREFILL, "decode": 1} for _ in range(4 * NUM_GATEWAYS))


def test_a_replica_that_stands_still_delays_nobody_and_no_prompt_is_computed_twice(tied: Tied) -> None:
    still = faults.choose(faults.replicas_of(tied.live.url, "prefill"), "0")
    faults.switch("stall", "prefill", still, application=APPLICATION)
    try:
        assert tied.answers(40, prompt_tokens=1500) == [200] * 40
    finally:
        faults.switch("clear", "prefill", still, application=APPLICATION)
    wait_until(tied.is_over, "every attempt has ended")

    counts, races = tied.counts(), tied.races_written()
    first_won, second_won, superseded_tokens = (sum(column) for column in zip(*races, strict=True))
    assert len(races) == NUM_GATEWAYS
    assert (first_won > 0, second_won > 0, superseded_tokens) == (True, True, 0)
    assert first_won + second_won == counts["tied"] == counts["AttemptWithdrawn"] + counts["AttemptFailed"]
    wait_until(lambda: sorted(tied.races_shown()) == sorted(races), "each gateway shows what it has written")


def test_a_replica_that_is_killed_takes_no_request_with_it(tied: Tied) -> None:
    [(pid, victim)] = [
        (int(labels["pid"]), labels["replica"])
        for labels, _ in tied.live.samples("spillway_replica_info")
        if labels["pool"] == "prefill"
    ][:1]

    async def kill_in_the_middle() -> list[int]:
        answers = asyncio.create_task(asyncio.to_thread(tied.answers, 40, 3000))
        await asyncio.to_thread(wait_until, lambda: tied.counts()["Arrived"] >= 60, "half of them are there")
        os.kill(pid, signal.SIGKILL)
        return await answers

    assert asyncio.run(kill_in_the_middle()) == [200] * 40
    wait_until(lambda: victim not in faults.replicas_of(tied.live.url, "prefill"), "Serve has noticed")
    wait_until(tied.is_over, "every attempt has ended")


def body(number: int, **changes: Any) -> dict[str, Any]:
    """One of many different completions."""
    prompt = [40 + number] * (1 + number * 37 % 700)
    return {"model": "tiny-llama", "prompt": prompt, "max_tokens": 4 + number % 20, "ignore_eos": True, **changes}


async def whole(client: httpx.AsyncClient, number: int) -> None:
    answer = await client.post("/v1/completions", json=body(number))
    assert answer.json()["usage"]["completion_tokens"] == 4 + number % 20


async def streamed(client: httpx.AsyncClient, number: int) -> None:
    async with client.stream("POST", "/v1/completions", json=body(number, stream=True)) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"


async def leaves_after_the_first_event(client: httpx.AsyncClient, number: int) -> None:
    async with client.stream("POST", "/v1/completions", json=body(number, stream=True, max_tokens=5000)) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_lines())


async def leaves_before_the_first_event(client: httpx.AsyncClient, number: int) -> None:
    long = body(number, prompt=[40 + number] * 3000, max_tokens=4000)
    with pytest.raises(httpx.TimeoutException):
        await client.post("/v1/completions", json=long, timeout=0.2)


KINDS = (whole, streamed, leaves_after_the_first_event, streamed, whole, leaves_before_the_first_event)
NUM_MIXED = 48


async def send_mixed(url: str) -> None:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await asyncio.gather(*(KINDS[number % len(KINDS)](client, number) for number in range(NUM_MIXED)))


def test_what_the_gateways_wrote_replays_and_holds_also_when_clients_leave(tied: Tied) -> None:
    asyncio.run(send_mixed(tied.live.url))
    wait_until(tied.is_over, "every attempt has ended")

    logs = sorted(tied.logs.iterdir())
    assert len(logs) == NUM_GATEWAYS
    assert {"ClientGone", "FirstTokenReceived", "AttemptFinished", "AttemptFailed", "ReplicaReported"} <= set(
        tied.counts()
    )
    for path in logs:
        with path.open("rb") as file:
            result = replay(file)
        assert result.is_same, result.difference
        assert result.num_records > 20, "each gateway had its share"
        with path.open("rb") as file:
            heard = hear_log(file, LATE_S).heard
        assert heard.violations == []
        assert heard.num_open_requests == 0

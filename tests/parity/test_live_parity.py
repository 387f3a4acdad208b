"""A deployment with real gateways and replicas, and clients some of whom leave: each gateway's log replays."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from cluster.event_log.frames import LogReader
from cluster.event_log.replay import replay
from deployments.launch import CONFIGS, running
from engines.peer_port import free_port
from engines.vllm.tiny_model import ensure_tiny_model
from tests.waiting import wait_until

NUM_GATEWAYS = 2
NUM_REQUESTS = 48
FILES = ("emulated.yaml",)
"""Configurations whose gateways are put to the proof; any that serves the tiny model will do."""

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(params=FILES)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The configuration with several gateways that log, and a balancer that draws from their random streams."""
    name: str = request.param
    if not (CONFIGS / name).exists():
        pytest.skip(f"there is no {name}")
    document: dict[str, Any] = yaml.safe_load((CONFIGS / name).read_text())
    (application,) = document["applications"]
    args = application["args"]
    args["gateway"] |= {"replicas": NUM_GATEWAYS, "num_cpus": 0.1, "event_log": str(tmp_path / "events"), "seed": 5}
    args["policies"]["balancing"] = "power_of_two"
    ensure_tiny_model(CONFIGS.parents[1] / args["model"]["path"])
    path = tmp_path / name
    path.write_text(yaml.safe_dump(document))
    return path


def body(number: int) -> dict[str, Any]:
    """One of many different completions."""
    return {
        "model": "tiny-llama",
        "prompt": [40 + number] * (1 + number * 37 % 700),
        "max_tokens": 4 + number % 20,
        "ignore_eos": True,
    }


async def whole(client: httpx.AsyncClient, number: int) -> None:
    answer = await client.post("/v1/completions", json=body(number))
    assert answer.json()["usage"]["completion_tokens"] == 4 + number % 20


async def streamed(client: httpx.AsyncClient, number: int) -> None:
    async with client.stream("POST", "/v1/completions", json=body(number) | {"stream": True}) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"


async def leaves_after_the_first_event(client: httpx.AsyncClient, number: int) -> None:
    long = body(number) | {"stream": True, "max_tokens": 5000}
    async with client.stream("POST", "/v1/completions", json=long) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_lines())


async def leaves_before_the_first_event(client: httpx.AsyncClient, number: int) -> None:
    long = body(number) | {"prompt": [40 + number] * 3000, "max_tokens": 4000}
    with pytest.raises(httpx.TimeoutException):
        await client.post("/v1/completions", json=long, timeout=0.2)


KINDS = (whole, streamed, leaves_after_the_first_event, streamed, whole, leaves_before_the_first_event)


async def send_all(url: str) -> None:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await asyncio.gather(*(KINDS[number % len(KINDS)](client, number) for number in range(NUM_REQUESTS)))


def count(folder: Path) -> Counter[str]:
    """How many there are by now of each kind of event and effect, in all logs."""
    found: Counter[str] = Counter()
    for path in folder.iterdir():
        with path.open("rb") as file:
            for record in LogReader(file):
                found[type(record.event).__name__] += 1
                found.update(effect["type"] for effect in msgspec.msgpack.decode(record.answer))
    return found


def is_over(folder: Path) -> bool:
    """Whether everybody who stayed has arrived, and every attempt has ended."""
    found = count(folder)
    ended = found["AttemptFinished"] + found["AttemptFailed"]
    return found["Arrived"] >= NUM_REQUESTS - NUM_REQUESTS // len(KINDS) and found["Send"] == ended


def test_what_the_gateways_of_a_deployment_write_replays(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    with running(config, free_port("127.0.0.1")) as deployment:
        wait_until(lambda: _num_ready(deployment.url) >= 2 * NUM_GATEWAYS, "every gateway knows its replicas")
        asyncio.run(send_all(deployment.url))
        wait_until(lambda: is_over(folder), "every attempt's end is in the logs")

    logs = sorted(folder.iterdir())
    assert len(logs) == NUM_GATEWAYS
    assert {"ClientGone", "FirstToken", "AttemptFinished", "AttemptFailed", "ReplicaReported"} <= set(count(folder))
    for path in logs:
        with path.open("rb") as file:
            result = replay(file)
        assert result.is_same, result.difference
        assert result.num_records > 20, "each gateway had its share"


def _num_ready(url: str) -> int:
    """How many of several looks find a gateway that is ready; connections are new, so they go to all gateways."""
    return sum(httpx.get(f"{url}/ready", timeout=30).status_code == 200 for _ in range(4 * NUM_GATEWAYS))

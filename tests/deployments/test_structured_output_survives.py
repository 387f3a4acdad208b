"""A structured answer whose decode replica is killed ends as if nothing had happened, token by token, twenty times."""

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.config import ROOT
from deployments.launch import running
from engines.peer_port import free_port
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.proof, pytest.mark.timeout(3000)]

NUM_KILLS = 20
NUM_ITEMS = 60
ITEM = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "paid": {"type": "boolean"}},
    "required": ["size", "paid"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": NUM_ITEMS, "maxItems": NUM_ITEMS}
BODY = {
    "model": "tiny-llama",
    "max_tokens": 2000,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "orders", "schema": SCHEMA}},
}
READY_S = 180.0


def is_an_order(item: Any) -> bool:
    return item.keys() == {"size", "paid"} and item["size"] in ("small", "large") and isinstance(item["paid"], bool)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One prefill and two decode replicas of the tiny model."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "local-vllm.yaml").read_text())
    for pool in document["applications"][0]["args"]["pools"]:
        pool |= {"num_cpus": 0.3, "replicas": 2 if pool["role"] == "decode" else 1}
    config: Path = tmp_path_factory.mktemp("kills") / "two-decodes.yaml"
    config.write_text(yaml.safe_dump(document))
    with running(config, free_port("127.0.0.1")) as deployment:
        yield deployment.url


def samples(url: str, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(HTTP.get(f"{url}/metrics", timeout=30).text)
    found = [each for family in families for each in family.samples if each.name == name]
    return [(each.labels, each.value) for each in found if each.labels["pool"] == "decode"]


def decode_pids(url: str) -> dict[str, int]:
    return {labels["replica"]: int(labels["pid"]) for labels, _ in samples(url, "spillway_replica_info")}


def busy_decodes(url: str) -> set[str]:
    return {labels["replica"] for labels, value in samples(url, "spillway_replica_num_requests_running") if value}


def has_two_decodes(url: str) -> bool:
    return int(HTTP.get(f"{url}/ready", timeout=30).json()["replicas"]["decode"]) == 2 and len(decode_pids(url)) == 2


def answer(url: str, prompt: str, kill_after: int = 1 << 30) -> tuple[str, int, bool]:
    """The text of a streamed answer, its tokens, and whether the replica that gave it was killed meanwhile."""
    text, tokens, num_events, killed = "", 0, 0, False
    body = {**BODY, "prompt": prompt}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as stream:
        assert stream.status_code == 200, stream.read()
        for line in filter(None, stream.iter_lines()):
            last = line
            if line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += "".join(choice["text"] for choice in event["choices"])
            tokens = event["usage"]["completion_tokens"] if event.get("usage") else tokens
            num_events += 1
            if num_events > kill_after and not killed:
                busy = busy_decodes(url)  # a replica reports twice a second
                if len(busy) == 1:
                    os.kill(decode_pids(url)[busy.pop()], signal.SIGKILL)
                    killed = True
    assert last == "data: [DONE]"
    return text, tokens, killed


def test_a_structured_answer_survives_its_decode_replica_twenty_times(url: str) -> None:
    rng = random.Random(20)
    num_kills = 0
    for attempt in range(2 * NUM_KILLS):
        wait_until(lambda: has_two_decodes(url), "a new replica has come", READY_S)
        wait_until(lambda: not busy_decodes(url), "nothing runs")
        prompt = f"Order number {attempt}:"
        wanted, wanted_tokens, _ = answer(url, prompt)
        orders = json.loads(wanted)
        assert len(orders) == NUM_ITEMS
        assert all(map(is_an_order, orders))
        text, tokens, killed = answer(url, prompt, kill_after=rng.randrange(1, wanted_tokens // 3))
        assert (text, tokens) == (wanted, wanted_tokens), "the answer is the one of an undisturbed run"
        num_kills += killed
        print(f"{num_kills} of {NUM_KILLS}", flush=True)
        if num_kills == NUM_KILLS:
            return
    raise AssertionError(f"only {num_kills} answers were interrupted")

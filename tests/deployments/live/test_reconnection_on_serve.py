"""A gateway of two is killed under fifty streams on Serve: each of them comes back and is exact."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.client import stream
from deployments.config import ROOT
from deployments.launch import Deployment, running
from engines.peer_port import free_port
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.process_watch import children_named
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

STREAMS = 50
TOKENS = 300


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two emulated replicas for prefill, two for decode, slow enough for answers of some ten seconds; two gateways."""
    ensure_tokenizer()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    document["proxy_location"] = "Disabled"
    args = document["applications"][0]["args"]
    args["engine"]["emulation"]["speed"] = 0.25
    args["pools"] = [{"name": role, "role": role, "replicas": 1, "num_cpus": 0.1} for role in ("prefill", "decode")]
    args["gateway"] = {**args.get("gateway", {}), "replicas": 2, "num_cpus": 0.1}
    config = tmp_path_factory.mktemp("reconnection") / "two-gateways.yaml"
    config.write_text(yaml.safe_dump(document))
    with running(config, free_port("127.0.0.1")) as deployment:
        wait_until(lambda: len(children_named(deployment.process.pid, ":gateway")) == 2, "both gateways are up")
        yield deployment


def body_of(number: int) -> dict[str, Any]:
    return {
        "model": "tiny-llama",
        "prompt": f"{number}: Hello",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }


class Client:
    """Reads one answer.

    Attributes:
        token_ids: Of what has come.
        text: Likewise.
        usage: What the end said.
    """

    def __init__(self, number: int) -> None:
        self._body = body_of(number)
        self.token_ids: list[int] = []
        self.text = ""
        self.usage: dict[str, Any] = {}

    def read(self, url: str) -> None:
        for event in stream(f"{url}/v1/completions", self._body, patience_s=60):
            assert "error" not in event, event
            for choice in event["choices"]:
                self.token_ids += choice.get("token_ids", ())
                self.text += choice["text"]
            self.usage = event.get("usage") or self.usage

    def whole(self, url: str) -> tuple[list[int], str]:
        """What an undisturbed request gets."""
        choice = HTTP.post(f"{url}/v1/completions", json={**self._body, "stream_options": None}).json()["choices"][0]
        return choice["token_ids"], choice["text"]


def reconnections(deployment: Deployment) -> Counter[str]:
    """What has come of the clients that came back."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(HTTP.get(f"{deployment.url}/metrics").text):
        for sample in family.samples:
            if sample.name == "spillway_reconnections_total":
                found[sample.labels["outcome"]] += int(sample.value)
    return found


def test_a_gateway_is_killed_under_fifty_streams_and_each_is_exact(deployment: Deployment) -> None:
    clients = [Client(number) for number in range(STREAMS)]
    with ThreadPoolExecutor(max_workers=STREAMS) as pool:
        reading = [pool.submit(each.read, deployment.url) for each in clients]
        wait_until(lambda: all(len(each.token_ids) > 5 for each in clients), "all answers are under way")
        children_named(deployment.process.pid, ":gateway")[0].kill()
        for each in reading:
            each.result(timeout=300)

    wholes = list(ThreadPoolExecutor(max_workers=STREAMS).map(lambda each: each.whole(deployment.url), clients))
    exact = [(each.token_ids, each.text) == whole for each, whole in zip(clients, wholes, strict=True)]
    assert exact == [True] * STREAMS
    assert {each.usage["completion_tokens"] for each in clients} == {TOKENS}
    came_back = reconnections(deployment)
    assert came_back["resumed"] >= 5, "the one that was killed had some of them"
    assert set(came_back) <= {"resumed", "finished"}

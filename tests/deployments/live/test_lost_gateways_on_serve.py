"""Two gateways on one socket on Serve: what clients see when a gateway or the listener dies or stands still."""

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.client import stream
from deployments.config import ROOT
from deployments.launch import Deployment, running
from deployments.listener.listener import Patience
from engines.peer_port import free_port
from tests.deployments.gateway_logs import check_logs
from tests.deployments.listening_sockets import sockets_of
from tests.deployments.live_cluster import START_PATIENCE_S
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.process_watch import children_named
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.ray

STREAMS = 50
TOKENS = 300
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One emulated replica, slow enough for answers of some seconds, and two gateways."""
    ensure_tokenizer()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "unified-vllm.yaml").read_text())
    args = document["applications"][0]["args"]
    args["engine"] = {"kind": "emulated", "emulation": {"profile": "h100-llama3-8b", "speed": 0.25}}
    args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.1}]
    logs = tmp_path_factory.mktemp("listener-logs")
    args["gateway"] = {**args.get("gateway", {}), "replicas": 2, "num_cpus": 0.1, "event_log": str(logs)}
    config = tmp_path_factory.mktemp("listener") / "two-gateways.yaml"
    config.write_text(yaml.safe_dump(document))
    with running(config, free_port("127.0.0.1")) as deployment:
        wait_until(lambda: len(processes(deployment, ":gateway")) == 2, "both gateways are up")
        yield deployment
    check_logs(logs)


def processes(deployment: Deployment, what: str) -> list[psutil.Process]:
    return children_named(deployment.process.pid, what)


@contextmanager
def clients(deployment: Deployment) -> Iterator[Counter[int]]:
    """Four clients with a connection for each request, one after the other; how many ended with which status."""
    statuses: Counter[int] = Counter()
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                answer = HTTP.post(f"{deployment.url}/v1/completions", json=BODY)
                statuses[answer.status_code] += 1
            except httpx.TransportError:
                statuses[0] += 1
            is_over.wait(0.02)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for each in asking:
        each.start()
    try:
        wait_until(lambda: statuses[200] > 20, "requests are answered")
        yield statuses
    finally:
        is_over.set()
        for each in asking:
            each.join()


def until_answered(statuses: Counter[int], more: int, patience_s: float = PATIENCE_S) -> None:
    wanted = statuses[200] + more
    wait_until(lambda: statuses[200] >= wanted, f"{more} more requests are answered", patience_s)


SHORT = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 1}


def until_both_serve(deployment: Deployment) -> None:
    """A gateway's process is there before it takes connections."""
    seen: set[str] = set()

    def asks() -> bool:
        answer = HTTP.post(f"{deployment.url}/v1/completions", json=SHORT, headers={"connection": "close"})
        seen.add(answer.headers["x-spillway-gateway"])
        return len(seen) == 2

    wait_until(asks, "both gateways take connections", 120)


def test_gateways_and_their_listener_listen_where_the_table_says(deployment: Deployment) -> None:
    until_both_serve(deployment)
    at_the_api = defaultdict(list)
    for each in sockets_of(processes(deployment, "")):
        assert each.rows, each
        if deployment.url.endswith(f":{each.port}"):
            at_the_api["gateway" if ":gateway" in each.process else "listener"].append(each)
    assert {name: len(found) for name, found in at_the_api.items()} == {"gateway": 2, "listener": 1}


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


def test_a_gateway_that_stands_still_gets_no_new_requests(deployment: Deployment) -> None:
    stopped = processes(deployment, ":gateway")[0]
    with clients(deployment) as statuses:
        stopped.send_signal(signal.SIGSTOP)
        with clients(deployment) as new:  # those that had a request there wait for it, perhaps all of them
            until_answered(new, 40)
        stopped.send_signal(signal.SIGCONT)
        until_answered(statuses, 20)
    assert set(statuses) == set(new) == {200}


def test_the_death_of_a_gateway_costs_what_it_had_under_way_and_no_new_request(deployment: Deployment) -> None:
    with clients(deployment) as statuses:
        processes(deployment, ":gateway")[0].kill()
        until_answered(statuses, 60)
    assert statuses[0] <= 4, "one for each client"
    assert set(statuses) <= {0, 200}
    wait_until(lambda: len(processes(deployment, ":gateway")) == 2, "Serve starts another one")


def test_a_gateway_is_killed_under_fifty_streams_and_each_is_exact(deployment: Deployment) -> None:
    until_both_serve(deployment)
    clients = [Client(number) for number in range(STREAMS)]
    with ThreadPoolExecutor(max_workers=STREAMS) as pool:
        reading = [pool.submit(each.read, deployment.url) for each in clients]
        wait_until(lambda: all(len(each.token_ids) > 5 for each in clients), "all answers are under way")
        processes(deployment, ":gateway")[0].kill()
        for each in reading:
            each.result(timeout=300)

    wholes = list(ThreadPoolExecutor(max_workers=STREAMS).map(lambda each: each.whole(deployment.url), clients))
    exact = [(each.token_ids, each.text) == whole for each, whole in zip(clients, wholes, strict=True)]
    assert exact == [True] * STREAMS
    assert {each.usage["completion_tokens"] for each in clients} == {TOKENS}
    came_back = reconnections(deployment)
    assert came_back["resumed"] >= 5, "the one that was killed had some of them"
    assert set(came_back) <= {"resumed", "finished"}
    wait_until(lambda: len(processes(deployment, ":gateway")) == 2, "Serve starts another one")


def test_nobody_notices_the_death_of_the_listener(deployment: Deployment) -> None:
    [listener] = processes(deployment, "ListenerActor")
    with clients(deployment) as statuses:
        os.kill(listener.pid, signal.SIGKILL)
        wait_until(lambda: processes(deployment, "ListenerActor") not in ([], [listener]), "gateways start another one")
        until_answered(statuses, 40)
    assert set(statuses) == {200}


def test_requests_wait_when_all_gateways_have_died(deployment: Deployment) -> None:
    with clients(deployment) as statuses:
        killed_at_s = time.monotonic()
        for each in processes(deployment, ":gateway"):
            each.kill()
        before = statuses[0]
        until_answered(statuses, 40, START_PATIENCE_S)
        away_s = time.monotonic() - killed_at_s
    assert statuses[0] - before <= 4, "what the gateways had under way; what came later has waited"
    longest_waits = int(away_s / Patience().refuse_after_s)
    assert statuses[503] <= 4 * longest_waits, "each client is refused when it has waited for so long, and no sooner"
    assert set(statuses) <= {0, 200, 503}

"""What the launcher runs, with HAProxy and without: hot routes, and a replica that is killed in mid-answer."""

import json
import os
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest
import yaml

from deployments.config import ROOT
from deployments.launch import Deployment, running
from engines.peer_port import free_port
from tests.deployments.gateway_logs import check_logs
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

TOKENS = 400
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two emulated replicas behind HAProxy; without a proxy it is ``test_lost_gateways_on_serve``."""
    ensure_tokenizer()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "unified-vllm.yaml").read_text())
    document["proxy_location"] = "HeadOnly"
    args = document["applications"][0]["args"]
    args["engine"] = {"kind": "emulated", "emulation": {"profile": "h100-llama3-8b", "speed": 0.25}}
    args["pools"] = [{"name": "unified", "role": "unified", "replicas": 2, "num_cpus": 0.1}]
    folder = tmp_path_factory.mktemp("data_plane")
    args["gateway"] = {**args.get("gateway", {}), "event_log": str(folder / "logs")}
    config = folder / "two-replicas.yaml"
    config.write_text(yaml.safe_dump(document))
    with running(config, free_port("127.0.0.1")) as deployment:
        yield deployment
    check_logs(folder / "logs")


def replica_pids(deployment: Deployment) -> set[int]:
    page = HTTP.get(f"{deployment.url}/metrics").text
    lines = [line for line in page.splitlines() if line.startswith("spillway_replica_info{")]
    return {int(line.partition('pid="')[2].partition('"')[0]) for line in lines}


def test_a_replica_that_is_killed_in_mid_answer_is_gone_on_from_elsewhere(deployment: Deployment) -> None:
    wait_until(lambda: len(replica_pids(deployment)) == 2, "both replicas are up")
    wait_until(lambda: is_on_a_hot_route(deployment), "the proxy has heard of the gateway, and goes to it straight")
    body = {**BODY, "stream_options": {"include_usage": True}}
    num_events = killed = tokens = 0
    with httpx.stream("POST", f"{deployment.url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in filter(None, answer.iter_lines()):
            last = line
            if line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            num_events += 1
            tokens = event["usage"]["completion_tokens"] if event.get("usage") else tokens
            if num_events > 50 and not killed:
                killed = next((pid for pid in replica_pids(deployment) if is_running(deployment, pid)), 0)
                if killed:  # a replica reports twice a second
                    os.kill(killed, signal.SIGKILL)
    assert killed
    assert (last, tokens) == ("data: [DONE]", TOKENS), "nothing is lost, and nothing comes twice"


def is_on_a_hot_route(deployment: Deployment) -> bool:
    """Whether an answer comes past Serve's wrappers, which give it an id."""
    answer = HTTP.post(f"{deployment.url}/v1/completions", json={**BODY, "stream": False, "max_tokens": 1})
    return answer.is_success and "x-request-id" not in answer.headers


def has_haproxy(deployment: Deployment) -> bool:
    return any("haproxy" in process.name() for process in psutil.Process(deployment.process.pid).children(True))


def is_running(deployment: Deployment, pid: int) -> bool:
    """Whether the replica with that pid has the one request that there is."""
    page = HTTP.get(f"{deployment.url}/metrics").text
    name = next(
        line.partition('replica="')[2].partition('"')[0] for line in page.splitlines() if f'pid="{pid}"' in line
    )
    running_there = next(
        line
        for line in page.splitlines()
        if line.startswith("spillway_replica_num_requests_running{") and f'replica="{name}"' in line
    )
    return float(running_there.rpartition(" ")[2]) > 0


def test_other_routes_go_their_usual_way(deployment: Deployment) -> None:
    assert HTTP.get(f"{deployment.url}/health").json() == {"status": "ok"}
    assert HTTP.get(f"{deployment.url}/v1/models").json()["data"][0]["id"] == "tiny-llama"
    refused = HTTP.post(f"{deployment.url}/v1/completions", json={**BODY, "max_tokens": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    assert has_haproxy(deployment)

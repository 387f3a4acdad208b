"""Policies change under open streams on Ray Serve, in front of an emulated engine."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import yaml

from deployments.config import ROOT
from deployments.wire.serve_internals import deploy_document
from tests.deployments.live_cluster import Live, RayNodes
from tests.engines.emulated_engines import ensure_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "reload"
MODEL = "tiny-llama"
NUM_SEQS = 2
SLOTS = 3
TOKENS = 100
REFUSE_SHEDDABLE = "tests.policy_doubles:RefuseSheddable"


def document(user_config: dict[str, Any] | None) -> dict[str, Any]:
    """One emulated replica that takes few requests at a time, so that others wait at the gateway."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    application = found["applications"][0]
    args = application["args"]
    args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.01, "max_num_seqs": NUM_SEQS}]
    args["engine"]["emulation"]["speed"] = 0.1
    args["gateway"] |= {"num_cpus": 0.01}
    args["policies"] = {"planning": "always_unified"}
    application |= {"name": APPLICATION, "route_prefix": "/reload"}
    if user_config is not None:
        application["deployments"] = [{"name": "gateway", "user_config": user_config}]
    return {"applications": [application]}


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    from ray import serve

    ensure_tokenizer()
    deploy_document(document(None))
    wait_until(lambda: serve.status().applications[APPLICATION].status == "RUNNING", "the application runs", 120)
    where = f"{nodes.url}/reload"
    wait_until(lambda: httpx.get(f"{where}/ready").status_code == 200, "the replica is warm")
    yield Live(url=where, nodes=nodes)
    serve.delete(APPLICATION)


class Streams:
    """Clients that read answers to their ends.

    Args:
        http: Finds the deployment.
        pool: Runs them.
    """

    def __init__(self, http: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self._http = http
        self._pool = pool
        self.num_begun = 0
        self.ended: list[str] = []

    def begin(self, priority: str, number: int = 1, max_tokens: int = TOKENS) -> list[Future[int]]:
        """So many requests; each comes to the length of its answer, or the status of its refusal."""
        return [self._pool.submit(self._read, priority, max_tokens) for _ in range(number)]

    def status_of(self, priority: str) -> int:
        """What a short request comes to."""
        return self.begin(priority, max_tokens=4)[0].result(timeout=120)

    def _read(self, priority: str, max_tokens: int) -> int:
        body = {
            "model": MODEL,
            "prompt": "Hello",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        last = ""
        with self._http.stream("POST", "/v1/completions", json=body, headers={"x-priority": priority}) as answer:
            if answer.status_code != 200:
                return answer.status_code
            self.num_begun += 1
            for line in answer.iter_lines():
                last = line if '"usage":{' in line else last
        self.ended.append(priority)
        return int(json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"])


def reload(running: Live, user_config: dict[str, Any] | None, result: str = "applied") -> None:
    """Has Serve hand it to the gateway, and waits until that says so."""
    before = running.metric("spillway_reloads_total", result=result)
    deploy_document(document(user_config))
    wait_until(lambda: running.metric("spillway_reloads_total", result=result) > before, f"it is {result}")


@pytest.fixture
def streams(running: Live) -> Iterator[Streams]:
    with (
        httpx.Client(base_url=running.url, timeout=120, limits=httpx.Limits(max_connections=64)) as http,
        ThreadPoolExecutor(max_workers=32) as pool,
    ):
        yield Streams(http, pool)


def began_at(running: Live) -> int:
    """When the gateway that answers was made."""
    found: int = httpx.get(f"{running.url}/v1/models", timeout=60).json()["data"][0]["created"]
    return found


def test_policies_change_under_open_streams_and_all_of_them_complete(running: Live, streams: Streams) -> None:
    """Sheddable requests wait in order of arrival; with ``priority`` a critical one that comes last goes first."""
    began = began_at(running)
    answers = streams.begin("standard", SLOTS)
    wait_until(lambda: streams.num_begun >= NUM_SEQS, "answers are under way")
    answers += streams.begin("sheddable", 4)
    wait_until(lambda: running.metric("spillway_requests_waiting") == 4, "they wait")

    reload(running, {"policies": {"queueing": "priority", "admission": REFUSE_SHEDDABLE}})
    assert streams.status_of("sheddable") == 429
    answers += streams.begin("critical")

    assert [each.result(timeout=120) for each in answers] == [TOKENS] * (SLOTS + 5)
    assert streams.ended.index("critical") <= SLOTS + 1, "it overtook those who had waited before it came"
    assert began_at(running) == began, "no gateway was restarted"
    assert running.metric("spillway_requests_total", outcome="completed") == SLOTS + 5
    wait_until(lambda: running.metric("spillway_requests_open") == 0, "nothing is left open")


def test_what_cannot_be_changes_nothing_and_no_stream_breaks(running: Live, streams: Streams) -> None:
    reload(running, {"policies": {"admission": REFUSE_SHEDDABLE}, "revision": 2})
    under_way = streams.begin("standard")
    wait_until(lambda: streams.num_begun == 1, "it is under way")

    reload(running, {"policies": {"admission": "bouncer"}}, "refused")

    assert under_way[0].result(timeout=120) == TOKENS
    assert streams.status_of("sheddable") == 429


def test_without_user_config_what_the_arguments_say_holds_again(running: Live, streams: Streams) -> None:
    reload(running, {"policies": {"admission": REFUSE_SHEDDABLE}, "revision": 3})
    assert streams.status_of("sheddable") == 429

    reload(running, None)

    assert streams.status_of("sheddable") == 4

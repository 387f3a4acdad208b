"""Two models behind two gateways on Ray Serve: what happens to one is no affair of the other's."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml
from openai import OpenAI

from cluster.clock import unix_s
from deployments.config import ROOT
from tests.deployments.live_cluster import Live, RayNodes, application, replicas_of
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

LARGE, SMALL = "llama-70b", "llama-8b"
POOLS = {"large-prefill": 1, "large-decode": 1, "small": 2}


def application_args() -> dict[str, Any]:
    """``two-models.yaml`` for a crowded machine, with two gateways that tell one another of their load."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "two-models.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    for model in args["models"]:
        for pool in model["pools"]:
            pool["num_cpus"] = 0.01
    args["gateway"] |= {"num_cpus": 0.01, "replicas": 2, "load_coordinator": True}
    args["policies"]["shedding"] = "shared_fraction"
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "models", application_args()) as live:
        yield live


def client(running: Live) -> OpenAI:
    return OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=2, timeout=60)


def say(running: Live, model: str, **more: Any) -> str:
    """The model that has answered."""
    answer = client(running).chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, **more
    )
    return str(answer.model)


def test_openais_client_lists_both_and_is_answered_by_the_one_it_names(running: Live) -> None:
    assert {each.id for each in client(running).models.list()} == {LARGE, SMALL}
    assert [say(running, name) for name in (LARGE, "default", SMALL)] == [LARGE, LARGE, SMALL]


def test_counts_of_both_gateways_tell_models_apart(running: Live) -> None:
    """Of a class that no other test's requests have."""
    critical: Any = {"extra_headers": {"x-priority": "critical"}}
    with ThreadPoolExecutor(max_workers=8) as pool:
        answered = list(pool.map(lambda number: say(running, (LARGE, SMALL)[number % 3 > 0], **critical), range(24)))
    assert (answered.count(LARGE), answered.count(SMALL)) == (8, 16)

    def counted() -> dict[str, float]:
        kept = {"outcome": "completed", "class": "critical"}
        return {name: running.metric("spillway_requests_total", model=name, **kept) for name in (LARGE, SMALL)}

    wait_until(lambda: counted() == {LARGE: 8, SMALL: 16}, "both gateways have told of theirs")
    pools = {(labels["model"], labels["pool"]) for labels, _ in running.samples("spillway_replicas")}
    assert pools == {(LARGE, "large-prefill"), (LARGE, "large-decode"), (SMALL, "small")}


def test_each_has_its_own_load_coordination(running: Live) -> None:
    def exchanged() -> set[str]:
        samples = running.samples("spillway_load_coordinator_exchanges_total")
        return {labels["model"] for labels, value in samples if labels["result"] == "answered" and value > 0}

    wait_until(lambda: exchanged() == {LARGE, SMALL}, "gateways have exchanged what they have of either")


def test_where_one_model_has_lost_its_replica_the_other_one_answers(running: Live) -> None:
    wait_until(lambda: replicas_of(running.url) == POOLS, "all replicas take requests")
    pids = [int(labels["pid"]) for labels, _ in running.samples("spillway_replica_info") if labels["model"] == LARGE]
    for pid in set(pids):
        os.kill(pid, signal.SIGKILL)
    answered = [say(running, SMALL) for _ in range(10)]
    assert answered == [SMALL] * 10
    wait_until(lambda: replicas_of(running.url) == POOLS, "they have been replaced", 120)
    assert say(running, LARGE) == LARGE


def test_a_chain_of_calls_to_both_shares_one_deadline(running: Live) -> None:
    deadline = {"x-request-deadline": f"{unix_s() + 30:.3f}"}
    left = []
    for model in (SMALL, LARGE, SMALL):
        answer = HTTP.post(
            f"{running.url}/v1/completions",
            json={"model": model, "prompt": "Hello", "max_tokens": 16, "ignore_eos": True},
            headers=deadline,
            timeout=60,
        )
        assert answer.status_code == 200
        left.append(float(answer.headers["x-request-time-left-seconds"]))
    assert 30 > left[0] > left[1] > left[2] > 0

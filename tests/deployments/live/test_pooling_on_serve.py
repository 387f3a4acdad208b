"""An embedder, a reranker and a chat behind one endpoint on Ray Serve, as ``pipeline.yaml`` has them."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import yaml

from cluster.clock import unix_s
from deployments.config import ROOT
from tests.deployments.live_cluster import Live, RayNodes, application, replicas_of
from tests.engines.emulated_engines import ensure_models
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

POOLS = {"embedders": 2, "rerankers": 1, "answers": 2}
DOCUMENTS = ["the queue is short", "cold water", "a queue is a line of people"]


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    """``pipeline.yaml`` for a crowded machine."""
    ensure_models()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "pipeline.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    for model in args["models"]:
        for pool in model["pools"]:
            pool["num_cpus"] = 0.01
    args["gateway"]["num_cpus"] = 0.01
    with application(nodes, "pipeline", args) as live:
        yield live


def vectors(running: Live, texts: list[str]) -> list[list[float]]:
    """Embeddings by OpenAI's own client, which is not to retry."""
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        made = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
    return [each.embedding for each in made.data]


def test_a_search_with_an_answer_at_its_end_has_one_deadline(running: Live) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"model": "embedder", "input": ["queues", *DOCUMENTS]}),
        ("/v1/rerank", {"model": "reranker", "query": "queues", "documents": DOCUMENTS, "top_n": 2}),
        ("/v1/chat/completions", {"model": "llama-8b", "messages": [{"role": "user", "content": "queues"}]}),
    ]
    deadline, left = {"x-request-deadline": f"{unix_s() + 60:.3f}"}, []
    for path, body in calls:
        answer = HTTP.post(f"{running.url}{path}", json={**body, "max_tokens": 8}, headers=deadline, timeout=60)
        assert answer.status_code == 200, answer.text
        left.append(float(answer.headers["x-request-time-left-seconds"]))
    late = HTTP.post(f"{running.url}{calls[0][0]}", json=calls[0][1], headers={"x-request-deadline": "1"}, timeout=60)

    assert 60 > left[0] > left[1] > left[2] > 0
    assert late.status_code == 504


def test_the_command_of_the_guide_ranks(running: Live) -> None:
    guide = (ROOT / "docs" / "how-to" / "embeddings.md").read_text()
    (command,) = re.findall("```sh\n(.*?)```", guide, re.DOTALL)
    _, url, *_, body = shlex.split(command)
    answer = HTTP.post(f"{running.url}{httpx.URL(url).path}", json=json.loads(body), timeout=60)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == 1


def test_a_batch_is_spread_over_all_replicas(running: Live) -> None:
    made = vectors(running, [f"text {number}" for number in range(400)])
    assert len({tuple(each) for each in made}) == 400

    def shares() -> list[float]:
        placed = running.samples("spillway_attempts_total")
        return [value for labels, value in placed if labels["model"] == "embedder" and value > 100]

    wait_until(lambda: len(shares()) == 2, "each of two replicas has got its share")


def test_no_text_is_lost_with_a_replica(running: Live) -> None:
    """SIGKILL in the middle of twenty batches: every one is answered, with the vectors that it had before."""
    texts = [f"text {number}" for number in range(30)]
    before = vectors(running, texts)
    wait_until(lambda: replicas_of(running.url) == POOLS, "all replicas take requests")
    replicas = [labels for labels, _ in running.samples("spillway_replica_info") if labels["pool"] == "embedders"]
    with ThreadPoolExecutor(max_workers=4) as pool:
        asked: list[Future[list[list[float]]]] = [pool.submit(vectors, running, texts) for _ in range(20)]
        asked[3].result()
        os.kill(int(replicas[0]["pid"]), signal.SIGKILL)
        after = [each.result() for each in asked]
    assert all(each == before for each in after)
    wait_until(lambda: replicas_of(running.url) == POOLS, "it has been replaced", 120)

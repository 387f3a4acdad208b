"""A sheddable request gives its place up on Ray Serve: its client sees a pause, and the same answer."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from tests.deployments.live_cluster import RayNodes, application, emulated_args
from tests.plain_http import HTTP
from tests.waiting import wait_until

APPLICATION = "preempting"
BULK = {"model": "tiny-llama", "prompt": "All of it", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
SMALL = {"model": "tiny-llama", "prompt": "A word", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
SHEDDABLE = {"x-priority": "sheddable"}

pytestmark = pytest.mark.ray


def application_args() -> dict[str, Any]:
    """``emulated.yaml`` with one place for one request at each stage."""
    args = emulated_args(pools=(1, 1))
    for pool in args["pools"]:
        pool |= {"max_num_seqs": 1, "waiting_fraction": 0}
    args["policies"] |= {"queueing": "priority", "preemption": "newest_sheddable"}
    return args


@pytest.fixture(scope="module")
def url(nodes: RayNodes) -> Iterator[str]:
    with application(nodes, APPLICATION, application_args()) as live:
        yield live.url


def completion(url: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = HTTP.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def metric(url: str, name: str) -> float:
    lines = HTTP.get(f"{url}/metrics", timeout=30).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def num_preemptions(url: str) -> float:
    return metric(url, "spillway_preemptions_total")


def test_a_stream_that_is_stopped_gives_the_answer_that_it_would_have_given(url: str) -> None:
    undisturbed = completion(url, BULK)
    text = ""
    usage: dict[str, int] = {}
    small: list[Future[dict[str, Any]]] = []

    with ThreadPoolExecutor(1) as people:
        body = {**BULK, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=SHEDDABLE, timeout=60) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = msgspec.json.decode(line.removeprefix("data: "))
                text += "".join(choice["text"] for choice in event["choices"])
                usage = event.get("usage") or usage
                if len(small) < 2 and len(text) > 100 * (1 + len(small)):
                    small.append(people.submit(completion, url, SMALL))
            num_small = sum(each.result()["usage"]["completion_tokens"] for each in small)

    assert text == undisturbed["choices"][0]["text"]
    assert usage["completion_tokens"] == undisturbed["usage"]["completion_tokens"] == 400
    assert num_small == 8
    assert num_preemptions(url) == 2


def test_without_a_stream_the_answer_is_the_same_too(url: str) -> None:
    before = num_preemptions(url)
    undisturbed = completion(url, BULK)

    with ThreadPoolExecutor(1) as batch:
        bulk = batch.submit(completion, url, BULK, **SHEDDABLE)
        wait_until(lambda: metric(url, "spillway_requests_open") == 1, "it has begun")
        completion(url, SMALL)
        answered = bulk.result()

    assert answered["choices"] == undisturbed["choices"]
    assert answered["usage"]["completion_tokens"] == 400
    assert num_preemptions(url) >= before

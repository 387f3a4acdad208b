"""The order inside an engine on Ray Serve: the place that a policy gives to an attempt reaches the engine."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.deployments.live_cluster import Live, RayNodes, application, emulated_args
from tests.plain_http import HTTP
from tests.waiting import wait_until

STEP_TOKENS = 8_192
"""A long prompt is a whole step, so that no other ends with it."""

pytestmark = pytest.mark.ray


def application_args() -> dict[str, Any]:
    """One engine that takes seconds for a step and goes by priority."""
    args = emulated_args()
    args["engine"]["emulation"]["speed"] = 0.1
    args["engine"]["args"] = {"scheduling_policy": "priority", "max_num_batched_tokens": STEP_TOKENS}
    args["policies"]["engine_order"] = "shortest_prompt"
    return args


@pytest.fixture(scope="module")
def live(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "engine-order", application_args()) as found:
        yield found


def num_open(url: str) -> int:
    lines = HTTP.get(f"{url}/metrics", timeout=30).text.splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("spillway_requests_open{"))


def test_a_short_prompt_goes_before_a_long_one_that_waits_in_the_engine(live: Live) -> None:
    done: list[str] = []

    def ask(name: str, token_id: int, prompt_tokens: int) -> None:
        body = {"model": "tiny-llama", "prompt": [token_id] * prompt_tokens, "max_tokens": 1, "ignore_eos": True}
        HTTP.post(f"{live.url}/v1/completions", json=body, timeout=120).raise_for_status()
        done.append(name)

    with ThreadPoolExecutor(3) as clients:
        answers = []
        for name, token_id, prompt_tokens in (("first", 5, STEP_TOKENS), ("long", 6, STEP_TOKENS), ("short", 7, 20)):
            answers.append(clients.submit(ask, name, token_id, prompt_tokens))
            wait_until(lambda: num_open(live.url) == len(answers), f"{name} has come")
        for answer in answers:
            answer.result()

    assert done == ["first", "short", "long"]

"""A pool on Ray Serve that has no replica while there is nothing to do, and whose lane others serve meanwhile."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.deployments.live_cluster import START_PATIENCE_S, Live, RayNodes, application, emulated_args, replicas_of
from tests.deployments.streams import Streams
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

TOKENS = 300
"""Some fifteen seconds of an engine that is slowed down eight times."""


def args_with_a_pool_that_may_have_none() -> dict[str, Any]:
    args = emulated_args()
    args["engine"]["emulation"]["speed"] = 0.125
    [pool] = args["pools"]
    args["pools"] = [
        {**pool, "name": "short", "autoscaling": {"min_replicas": 0, "max_replicas": 2}},
        {**pool, "name": "long"},
    ]
    args["policies"]["lanes"] = {
        "lanes": [
            {"name": "short", "prompt_tokens": {"below": 2000}, "pools": ["short"], "borrows_from": ["long"]},
            {"name": "long", "prompt_tokens": {"at_least": 2000}, "pools": ["long"]},
        ]
    }
    args["policies"]["scaling"] = {"name": "queue_depth", "params": {"target_requests": 4, "down_after_s": 5}}
    args["scaling_period_s"] = 1
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "zero", args_with_a_pool_that_may_have_none()) as live:
        yield live


def test_without_work_the_last_replica_goes_and_the_first_request_is_served_while_another_one_starts(
    running: Live,
) -> None:
    def num_short() -> int:
        return replicas_of(running.url).get("short", 0)

    wait_until(lambda: num_short() == 0, "nobody needs it", patience_s=START_PATIENCE_S)
    assert HTTP.get(f"{running.url}/ready").status_code == 200, "others serve in its place"
    wait_until(lambda: running.metric("spillway_target_replicas", pool="short") == 0, "its metric says so")
    answers: list[Future[int]] = []
    with httpx.Client(base_url=running.url, timeout=120) as http, ThreadPoolExecutor(max_workers=8) as pool:
        streams = Streams(http, pool)
        assert streams.begin("standard", 1, 5)[0].result(timeout=120) == 5, "the other pool has served it"

        def is_back() -> bool:
            streams.keep_open(answers, 2, TOKENS)
            return num_short() > 0

        wait_until(is_back, "a replica has started", patience_s=START_PATIENCE_S)
        assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)

"""Pools on Ray Serve that sleep: a warm replica until there is more to do, and a pool that has none without anything
to do.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.deployments.live_cluster import START_PATIENCE_S, Live, RayNodes, application, emulated_args
from tests.deployments.streams import Streams
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

TOKENS = 300
"""Some fifteen seconds of an engine that is slowed down eight times."""


def warm_args() -> dict[str, Any]:
    args = emulated_args()
    args["engine"]["emulation"]["speed"] = 0.125
    args["pools"][0]["autoscaling"] = {"min_replicas": 1, "max_replicas": 2, "warm_replicas": 1}
    args["policies"]["scaling"] = {"name": "queue_depth", "params": {"target_requests": 2, "down_after_s": 2}}
    args["scaling_period_s"] = 1
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "warm", warm_args()) as live:
        yield live


def warm_ids(running: Live) -> dict[str, bool]:
    """Whether each replica is warm, as it says itself."""
    return {labels["replica"]: value == 1 for labels, value in running.samples("spillway_replica_is_warm")}


def has_one_of_each(running: Live) -> bool:
    return sorted(warm_ids(running).values()) == [False, True]


def test_a_warm_replica_serves_when_it_is_needed_and_sleeps_again_without_a_stream_cut(running: Live) -> None:
    wait_until(lambda: has_one_of_each(running), "one is in service and one is warm", patience_s=START_PATIENCE_S)
    [warm] = [name for name, is_warm in warm_ids(running).items() if is_warm]
    wait_until(lambda: running.metric("spillway_warm_replicas", pool="unified") == 1, "its metric says so")
    served = running.metric("spillway_replica_attempts_total", replica=warm)
    answers: list[Future[int]] = []

    with httpx.Client(base_url=running.url, timeout=120) as http, ThreadPoolExecutor(max_workers=8) as pool:
        streams = Streams(http, pool)

        def is_in_service() -> bool:
            streams.keep_open(answers, 4, TOKENS)
            return not any(warm_ids(running).values())

        wait_until(is_in_service, "it takes requests", patience_s=START_PATIENCE_S)
        answers += streams.begin("standard", 2, TOKENS)
        wait_until(lambda: has_one_of_each(running), "one is warm again", patience_s=START_PATIENCE_S)
        assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)

    assert warm in warm_ids(running), "no replica had to start"
    assert running.metric("spillway_replica_attempts_total", replica=warm) > served
    assert running.metric("spillway_requests_total", outcome="completed") == len(answers)

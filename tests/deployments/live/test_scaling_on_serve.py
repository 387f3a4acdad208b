"""A scaling policy has Ray Serve start and drain emulated engines under open streams."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from deployments.scaling.scaler_actor import SCALER
from tests.deployments.live_cluster import (
    START_PATIENCE_S,
    Live,
    RayNodes,
    actor_of,
    application,
    emulated_args,
    replicas_of,
)
from tests.deployments.streams import Streams
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "scaled"
MOST_REPLICAS = 3
TOKENS = 300
"""Some fifteen seconds of an engine that is slowed down eight times."""


def scaled_args() -> dict[str, Any]:
    args = emulated_args()
    args["engine"]["emulation"]["speed"] = 0.125
    args["pools"][0]["autoscaling"] = {"min_replicas": 1, "max_replicas": MOST_REPLICAS}
    args["policies"]["scaling"] = {"name": "queue_depth", "params": {"target_requests": 2, "down_after_s": 2}}
    args["scaling_period_s"] = 1
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, APPLICATION, scaled_args()) as live:
        yield live


@pytest.fixture
def streams(running: Live) -> Iterator[Streams]:
    limits = httpx.Limits(max_connections=64)
    with (
        httpx.Client(base_url=running.url, timeout=120, limits=limits) as http,
        ThreadPoolExecutor(max_workers=16) as pool,
    ):
        yield Streams(http, pool)


def num_replicas(running: Live) -> int:
    return replicas_of(running.url).get("unified", 0)


def grown_to(number: int, running: Live, streams: Streams, answers: list[Future[int]]) -> bool:
    """Whether the pool has so many replicas; users who come back give it the reason, however slowly replicas start."""
    streams.keep_open(answers, 2 * MOST_REPLICAS, TOKENS)
    return num_replicas(running) >= number


def test_a_pool_grows_under_load_and_no_stream_is_cut_when_it_shrinks(running: Live, streams: Streams) -> None:
    answers: list[Future[int]] = []
    wait_until(
        lambda: grown_to(MOST_REPLICAS, running, streams, answers), "the pool has grown", patience_s=START_PATIENCE_S
    )
    answers += streams.begin("standard", 2, TOKENS)  # least work left: to the replicas that are new
    wait_until(lambda: num_replicas(running) < MOST_REPLICAS, "it shrinks while some are under way")
    assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)
    wait_until(lambda: num_replicas(running) == 1, "nobody needs more than one")
    wait_until(lambda: running.metric("spillway_target_replicas", pool="unified") == 1, "its metric says so")
    assert running.metric("spillway_requests_total", outcome="completed") == len(answers)


def test_another_scaler_goes_on_where_one_has_died(running: Live, streams: Streams) -> None:
    import ray

    first = actor_of(APPLICATION, SCALER)
    ray.kill(first)
    answers: list[Future[int]] = []
    wait_until(lambda: grown_to(2, running, streams, answers), "the pool grows again", patience_s=START_PATIENCE_S)
    assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)
    assert actor_of(APPLICATION, SCALER)._actor_id != first._actor_id

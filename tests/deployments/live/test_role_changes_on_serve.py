"""A decode replica that was a prefill replica a moment ago, and back, on Ray Serve under open streams."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.deployments.live_cluster import START_PATIENCE_S, Live, RayNodes, application, emulated_args, replicas_of
from tests.deployments.streams import Streams
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

TOKENS, TURNS = 60, 2
BOTH_WAYS = [{"at_s": 0, "replicas": {"prefill": 1, "decode": 2}}, {"at_s": 5, "replicas": {"prefill": 2, "decode": 1}}]


def changing_args() -> dict[str, Any]:
    args = emulated_args(pools=(2, 1))
    for pool in args["pools"]:
        pool |= {"max_num_seqs": 32, "autoscaling": {"max_replicas": 2, "changes_roles": True}}
    args["policies"]["scaling"] = {"name": "scheduled", "params": {"entries": BOTH_WAYS, "period_s": 10}}
    args["scaling_period_s"] = 1
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "changing", changing_args()) as live:
        yield live


def attempts(running: Live) -> dict[str, float]:
    """How many each replica has taken since it started."""
    return {labels["replica"]: value for labels, value in running.samples("spillway_replica_attempts_total")}


def test_a_replica_serves_either_side_of_the_handoff_in_turn_and_no_stream_is_cut(running: Live) -> None:
    at_first = set(attempts(running))
    assert len(at_first) == 3
    answers: list[Future[int]] = []
    served: list[tuple[int, int]] = []
    limits = httpx.Limits(max_connections=32)
    with httpx.Client(base_url=running.url, timeout=120, limits=limits) as http, ThreadPoolExecutor(16) as pool:
        streams = Streams(http, pool)

        def has_turned() -> bool:
            streams.keep_open(answers, 8, TOKENS)
            sizes = replicas_of(running.url)
            now = sizes["prefill"], sizes["decode"]
            if now in ((1, 2), (2, 1)) and served[-1:] != [now]:
                served.append(now)
            return len(served) > TURNS

        wait_until(has_turned, "roles were changed there and back", patience_s=START_PATIENCE_S)
        assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)
    taken = attempts(running)
    assert set(taken) == at_first, "no replica had to start, and none went"
    assert min(taken.values()) > 0
    assert running.metric("spillway_requests_total", outcome="completed") == len(answers)

"""Replicas that have a core of their own, on Ray Serve."""

import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.deployments.live_cluster import Live, RayNodes, application, emulated_args
from tests.plain_http import HTTP

pytestmark = pytest.mark.ray


def isolated_args() -> dict[str, Any]:
    args = emulated_args()
    args["pools"][0] |= {"replicas": 2, "num_cpus": 1, "isolation": {"cpu_cores": 1}}
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "isolated", isolated_args()) as live:
        yield live


def test_each_replica_runs_on_a_core_that_no_other_has(running: Live) -> None:
    pids = [int(labels["pid"]) for labels, _ in running.samples("spillway_replica_info")]
    cores = {pid: {frozenset(os.sched_getaffinity(each.id)) for each in psutil.Process(pid).threads()} for pid in pids}

    assert [len(of_threads) for of_threads in cores.values()] == [1, 1], "all threads of a replica have the same"
    (one,), (other,) = cores.values()
    assert len(one) == len(other) == 1
    assert one != other
    body = {"model": "tiny-llama", "prompt": "one", "max_tokens": 5}
    assert HTTP.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code == 200

"""Replicas of several workers, on several nodes: where Ray puts what is asked for. GPUs are names, engines emulated."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deployments.live_cluster import MODEL, Live, RayNodes, application, emulated_args
from tests.plain_http import HTTP

pytestmark = pytest.mark.ray

TENSOR = {"num_gpus": 2, "placement_group_strategy": "STRICT_PACK", "engine_args": {"tensor_parallel_size": 2}}
PIPELINE = {"num_gpus": 2, "placement_group_strategy": "STRICT_SPREAD", "engine_args": {"pipeline_parallel_size": 2}}


def big_args() -> dict[str, Any]:
    args = emulated_args(pools=(1, 1))
    prefill, decode = args["pools"]
    prefill |= TENSOR | {"resources": {"big": 0.01}}  # beside real engines, which have all of the node's "prefill"
    decode |= PIPELINE
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "big", big_args()) as live:
        yield live


def nodes_of(strategy: str) -> list[str]:
    """The node of each worker of the replica that was asked for so."""
    from ray.util import placement_group_table

    groups = [each for each in placement_group_table().values() if each["state"] == "CREATED"]
    [group] = [each for each in groups if each["strategy"] == strategy]
    assert all(bundle["GPU"] == 1 for bundle in group["bundles"].values())
    return list(group["bundles_to_node_id"].values())


def test_workers_of_a_tensor_are_on_the_node_that_was_asked_for(running: Live) -> None:
    assert nodes_of("STRICT_PACK") == [running.nodes.prefill] * 2


def test_stages_of_a_pipeline_are_each_on_a_node_of_its_own(running: Live) -> None:
    assert set(nodes_of("STRICT_SPREAD")) == {running.nodes.prefill, running.nodes.decode}


def test_such_replicas_answer(running: Live) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = HTTP.post(f"{running.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 4

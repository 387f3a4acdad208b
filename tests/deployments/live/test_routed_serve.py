"""The router on real Ray Serve, behind deployments that know nothing of spillway."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.deployments.call_balancers import Recorder
from tests.deployments.live_cluster import RayNodes
from tests.deployments.routed_apps import REPLICAS, build_routed
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

PATIENCE_S = 20.0
BALANCER = "tests.deployments.call_balancers"
SHORT, LONG = {"prompt": "Hello"}, {"messages": [{"role": "user", "content": "Hello " * 4_000}]}


@contextmanager
def routed(name: str, **router_kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Handles of the parent and of the three replicas."""
    from ray import serve

    parent = serve.run(build_routed(**router_kwargs), name=name, route_prefix=None)
    try:
        yield parent, serve.get_deployment_handle("named", name)
    finally:
        serve.delete(name, _blocking=False)


def name_of(named: Any, body: dict[str, Any] | None = None) -> str:
    name: str = named.name.remote(body or SHORT).result(timeout_s=PATIENCE_S)
    return name


def names_within_one_request(parent: Any, count: int) -> list[str]:
    """Who has answered so many calls that are made side by side."""
    names: list[str] = parent.names.remote(count).result(timeout_s=2 * PATIENCE_S)
    return names


def test_calls_go_by_work_also_side_by_side_within_one_request(nodes: RayNodes) -> None:
    with routed("by-work", balancing="least_work_left") as (parent, named):
        streams = [named.options(stream=True).hold.remote(body) for body in (LONG, SHORT, SHORT)]
        holders = [next(iter(stream)) for stream in streams]
        assert len(set(holders)) == REPLICAS, "each takes one: work that is under way counts"

        assert holders[0] not in {name_of(named) for _ in range(12)}, "it has the long one"

        streams[0].cancel()
        wait_until(lambda: name_of(named) == holders[0], "the replica whose long call has ended is the idlest")
        for stream in streams:
            stream.cancel()
        assert Counter(names_within_one_request(parent, 20)).keys() == set(holders)


def test_calls_are_answered_by_all_replicas_when_the_balancer_breaks(nodes: RayNodes) -> None:
    with routed("broken", balancing=f"{BALANCER}:Raises") as (parent, named):
        assert len({name_of(named) for _ in range(40)}) == REPLICAS
        assert len(names_within_one_request(parent, 10)) == 10


def test_anybodys_balancer_that_learns_hears_of_answers_and_of_dead_replicas_apart(nodes: RayNodes) -> None:
    """It is named by import path, and sends everything to one replica."""
    from ray.exceptions import RayActorError

    Recorder.made.clear()
    with routed("learning", balancing=f"{BALANCER}:Recorder") as (_, named):
        (_, most), *_ = Counter(name_of(named) for _ in range(20)).most_common(1)
        assert most >= 15, "a replica that does not say in time how full it is loses a call to another"
        wait_until(lambda: heard()[-1:] == ["Completed"], "the router has heard of the answer")
        assert "Failed" not in heard()

        with pytest.raises(RayActorError):
            named.die.remote(SHORT).result(timeout_s=PATIENCE_S)

        wait_until(lambda: heard()[-1:] == ["Failed"], "the router has heard of the death")


def heard() -> list[str]:
    """What the one balancer in this process was told; a router makes one for each role."""
    return [signal for recorder in Recorder.made for signal in recorder.seen if recorder.has_picked]

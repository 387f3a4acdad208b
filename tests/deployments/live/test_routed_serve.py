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
        serve.delete(name)


def name_of(named: Any, body: dict[str, Any] | None = None) -> str:
    name: str = named.name.remote(body or SHORT).result(timeout_s=PATIENCE_S)
    return name


def test_short_calls_keep_away_from_the_replica_that_has_a_long_one(nodes: RayNodes) -> None:
    with routed("by-work", balancing="least_work_left") as (_, named):
        streams = [named.options(stream=True).hold.remote(body) for body in (LONG, SHORT, SHORT)]
        holders = [next(iter(stream)) for stream in streams]
        assert len(set(holders)) == REPLICAS, "each takes one: work that is under way counts"

        assert holders[0] not in {name_of(named) for _ in range(12)}

        streams[0].cancel()
        wait_until(lambda: name_of(named) == holders[0], "the replica whose long call has ended is the idlest")
        for stream in streams:
            stream.cancel()


def test_calls_made_side_by_side_within_one_request_are_all_answered(nodes: RayNodes) -> None:
    with routed("fan-out-routed", balancing="power_of_two_by_work") as (parent, _):
        names = parent.names.remote(20).result(timeout_s=2 * PATIENCE_S)

    assert len(names) == 20
    assert len(set(names)) == REPLICAS


def test_anybodys_balancer_is_named_by_import_path(nodes: RayNodes) -> None:
    with routed("last", balancing=f"{BALANCER}:AlwaysTheLast") as (_, named):
        (_, most), *_ = Counter(name_of(named) for _ in range(20)).most_common(1)

    assert most >= 15, "a replica that does not say in time how full it is loses a call to another"


@pytest.mark.parametrize("balancing", [f"{BALANCER}:Raises", f"{BALANCER}:PicksNothing", "no_such_balancer"])
def test_calls_are_answered_by_all_replicas_when_the_balancer_breaks(nodes: RayNodes, balancing: str) -> None:
    with routed("broken", balancing=balancing) as (parent, named):
        assert len({name_of(named) for _ in range(40)}) == REPLICAS
        assert len(parent.names.remote(10).result(timeout_s=2 * PATIENCE_S)) == 10


def test_a_balancer_that_learns_hears_of_answers_and_of_dead_replicas_apart(nodes: RayNodes) -> None:
    from ray.exceptions import RayActorError

    Recorder.made.clear()
    with routed("learning", balancing=f"{BALANCER}:Recorder") as (_, named):
        name_of(named)
        wait_until(lambda: heard()[-1:] == ["Completed"], "the router has heard of the answer")
        assert "Failed" not in heard()

        with pytest.raises(RayActorError):
            named.die.remote(SHORT).result(timeout_s=PATIENCE_S)

        wait_until(lambda: heard()[-1:] == ["Failed"], "the router has heard of the death")


def heard() -> list[str]:
    """What the one balancer in this process was told; a router makes one for each role."""
    return [signal for recorder in Recorder.made for signal in recorder.seen if recorder.has_picked]

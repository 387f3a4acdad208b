"""Fails when Ray changes what ``deployments.wire.serve_internals`` relies on, or mends what makes it necessary."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deployments.live_cluster import RayNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

PATIENCE_S = 20.0
HANG_PATIENCE_S = 2.0


@pytest.fixture(scope="module")
def caller(nodes: RayNodes) -> Iterator[Any]:
    """The handle of a caller that knows two replicas."""
    from ray import serve

    from tests.deployments.fan_out import build_fan_out

    handle = serve.run(build_fan_out(), name="fan-out", route_prefix=None)
    wait_until(lambda: len(targets_of(handle)) == 2, "the router announces both replicas")
    yield handle
    serve.delete("fan-out", _blocking=False)


def targets_of(caller: Any) -> list[str]:
    return sorted(caller.targets.remote().result(timeout_s=PATIENCE_S))


def test_ten_calls_from_one_request_each_reach_the_replica_they_name(caller: Any) -> None:
    targets = (targets_of(caller) * 5)[:10]

    answers = caller.fan_out.remote(targets, True, PATIENCE_S).result(timeout_s=2 * PATIENCE_S)

    assert answers == [[target, target] for target in targets]


def test_the_router_says_which_replica_took_each_attempt(caller: Any) -> None:
    targets = (targets_of(caller) * 5)[:10]

    caller.fan_out.remote(targets, True, PATIENCE_S).result(timeout_s=2 * PATIENCE_S)

    accepted = caller.accepted.remote().result(timeout_s=PATIENCE_S)
    assert accepted == {f"attempt-{number}": target for number, target in enumerate(targets)}


def test_without_ids_of_their_own_calls_from_one_request_hang(caller: Any) -> None:
    """The trap. When this fails Ray has mended it, and ``use_own_internal_request_id`` can go."""
    targets = (targets_of(caller) * 5)[:10]

    answers = caller.fan_out.remote(targets, False, HANG_PATIENCE_S).result(timeout_s=2 * PATIENCE_S)

    assert None in answers

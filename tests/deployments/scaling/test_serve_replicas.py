"""What a scaler sees of Serve's replicas, and what Serve is told."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.scaled_pools import Autoscaling, PoolSize, ScaledPool
from deployments.scaling import serve_replicas, warm_replicas
from deployments.scaling.serve_replicas import ServeReplicas
from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from policies.views import Role

Told = list[tuple[Any, ...]]


def pools(num_warm: int = 0) -> dict[str, ScaledPool]:
    bounds = Autoscaling(min_replicas=1, max_replicas=8, warm_replicas=num_warm)
    pool = ScaledPool(
        role=Role.DECODE,
        autoscaling=bounds,
        start_s=35.0,
        step_s=0.006,
        max_ongoing_requests=64,
        max_num_seqs=51,
        kv_capacity_tokens=400_000,
    )
    return {"decode": pool, "other": pool}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Serve has an application with one pool; what it is told."""
    states = {"RUNNING": 2, "UPDATING": 1, "STARTING": 3, "STOPPING": 4}
    deployments = {name: SimpleNamespace(replica_states=states) for name in ("decode", "gateway")}
    application = SimpleNamespace(deployments=deployments)
    status = SimpleNamespace(applications={"spillway": application})
    monkeypatch.setattr("ray.serve.status", lambda: status)
    calls: Told = []
    monkeypatch.setattr(serve_replicas, "resize_deployment", lambda *call: calls.append(call))
    return calls


def test_replicas_are_ready_starting_or_draining(told: Told) -> None:
    replicas = ServeReplicas("spillway", pools())
    replicas.refresh(0.0)
    assert replicas.size("decode") == PoolSize(num_ready=3, num_starting=3, num_draining=4)
    assert list(replicas.sizes) == ["decode"]
    assert replicas.size("other") == PoolSize(num_ready=0, num_starting=0, num_draining=0)


def test_an_application_that_is_gone_has_none(told: Told) -> None:
    replicas = ServeReplicas("another", pools())
    replicas.refresh(0.0)
    assert replicas.sizes == {}


def test_serve_is_told_once_what_is_wanted(told: Told) -> None:
    replicas = ServeReplicas("spillway", pools())
    replicas.refresh(0.0)
    replicas.resize("decode", 8, 0.0)
    assert not told
    replicas.apply()
    replicas.apply()
    assert told == [("spillway", "decode", 8)]


class Calls:
    """The handle of a pool: what its replicas are told."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self.enter_service = self._method("enter")
        self.leave_service = self._method("leave")

    def _init(self) -> None:
        self._told.append(("routed",))

    def options(self, **_: Any) -> "Calls":
        return self

    def _method(self, name: str) -> Any:
        def remote(target: str) -> Any:
            self._told.append((name, target))
            return SimpleNamespace(result=lambda timeout_s: None)

        return SimpleNamespace(remote=remote)


def seen(*replica_ids: str, warm: str = "") -> tuple[SeenReplica, ...]:
    """Replicas of which the later ones have more to do."""
    return tuple(
        SeenReplica(
            replica_id=each,
            node_id="",
            max_ongoing_requests=8,
            stats={"is_warm": int(each in warm), "kv_tokens": number},
        )
        for number, each in enumerate(replica_ids)
    )


@pytest.fixture
def registry(told: Told, monkeypatch: pytest.MonkeyPatch) -> FleetRegistry:
    """What routers tell, and a handle for every pool."""
    registry = FleetRegistry()
    monkeypatch.setattr(warm_replicas, "REGISTRY", registry)
    monkeypatch.setattr("ray.serve.get_deployment_handle", lambda pool, application: Calls(told))
    return registry


def test_a_warm_replica_is_woken_up_and_another_one_is_asked_for_in_its_place(
    told: Told, registry: FleetRegistry
) -> None:
    replicas = ServeReplicas("spillway", pools(num_warm=2))
    replicas.refresh(0.0)
    registry.publish_replicas("decode", seen("a", "b", "c", warm="c"))
    told.clear()
    assert replicas.size("decode") == PoolSize(num_ready=2, num_starting=2, num_draining=4, num_warm=1)

    replicas.resize("decode", 6, 0.0)
    replicas.apply()

    assert told == [("enter", "c"), ("spillway", "decode", 8)]
    assert replicas.size("decode") == PoolSize(num_ready=2, num_starting=1 + 1, num_draining=4)
    registry.publish_replicas("decode", seen("a", "b", "c"))
    assert replicas.size("decode").num_ready == 3


def test_the_replicas_with_the_least_to_do_become_warm(told: Told, registry: FleetRegistry) -> None:
    replicas = ServeReplicas("spillway", pools(num_warm=1))
    replicas.refresh(0.0)
    registry.publish_replicas("decode", seen("a", "b", "c"))
    told.clear()

    replicas.resize("decode", 1, 0.0)
    replicas.apply()

    assert told == [("leave", "a"), ("leave", "b"), ("spillway", "decode", 2)]
    assert replicas.size("decode").num_warm == 2


def test_who_has_no_warm_replicas_needs_no_router(told: Told, registry: FleetRegistry) -> None:
    replicas = ServeReplicas("spillway", pools())
    replicas.refresh(0.0)
    replicas.resize("decode", 2, 0.0)
    replicas.apply()
    assert told == [("spillway", "decode", 2)]

"""What a scaler sees of Serve's replicas, and what Serve is told."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.scaled_pools import Autoscaling, PoolSize, ScaledPool
from deployments.scaling import named_replicas, serve_replicas
from deployments.scaling.serve_replicas import ServeReplicas
from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from policies.views import Role

Told = list[tuple[Any, ...]]
States = dict[str, dict[str, int]]


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
def states() -> States:
    """What Serve says of an application with one pool."""
    return {name: {"RUNNING": 2, "UPDATING": 1, "STARTING": 3, "STOPPING": 4} for name in ("decode", "gateway")}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, states: States) -> Told:
    """What Serve is told."""

    def status() -> Any:
        deployments = {name: SimpleNamespace(replica_states=its) for name, its in states.items()}
        return SimpleNamespace(applications={"spillway": SimpleNamespace(deployments=deployments)})

    monkeypatch.setattr("ray.serve.status", status)
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
        self.serve_pool = self._method("serve")

    def _init(self) -> None:
        self._told.append(("routed",))

    def options(self, **_: Any) -> "Calls":
        return self

    def _method(self, name: str) -> Any:
        def remote(*words: str, target: str) -> Any:
            self._told.append((name, target, *words))
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
    monkeypatch.setattr(named_replicas, "REGISTRY", registry)
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


def both_sides() -> dict[str, ScaledPool]:
    bounds = Autoscaling(min_replicas=1, max_replicas=8, changes_roles=True)
    decode = replace(pools()["decode"], autoscaling=bounds)
    return {"prefill": replace(decode, role=Role.PREFILL), "decode": decode}


def started(pool: str, *replica_ids: str, lent: str = "", changing: str = "") -> tuple[SeenReplica, ...]:
    """Replicas that have started in a pool, and of which some serve the other one."""
    other = {"prefill": "decode", "decode": "prefill"}[pool]
    return tuple(
        SeenReplica(
            replica_id=each,
            node_id="",
            max_ongoing_requests=8,
            deployment=pool,
            stats={"is_warm": int(each in changing), "kv_tokens": number} | ({"serves": other} if each in lent else {}),
        )
        for number, each in enumerate(replica_ids)
    )


@pytest.fixture
def changing(told: Told, registry: FleetRegistry, states: States) -> ServeReplicas:
    """Three prefill replicas and two decode replicas."""
    states |= {"prefill": {"RUNNING": 3}, "decode": {"RUNNING": 2}}
    replicas = ServeReplicas("spillway", both_sides())
    replicas.refresh(0.0)
    registry.publish_replicas("prefill", started("prefill", "p", "q", "r"))
    registry.publish_replicas("decode", started("decode", "d", "e"))
    told.clear()
    return replicas


def sizes(replicas: ServeReplicas) -> list[tuple[int, int]]:
    """Ready and changing, of both pools."""
    return [(size.num_ready, size.num_changing) for size in map(replicas.size, ("prefill", "decode"))]


def test_the_replicas_with_the_least_to_do_change_roles_and_count_where_they_will_serve(
    told: Told, registry: FleetRegistry, changing: ServeReplicas
) -> None:
    changing.change_roles("prefill", "decode", 2, 0.0)
    assert sizes(changing) == [(1, 0), (2, 2)]
    changing.apply()
    assert told == [("serve", "p", "decode"), ("serve", "q", "decode")]

    registry.publish_replicas("prefill", started("prefill", "p", "q", "r", lent="pq", changing="q"))
    assert sizes(changing) == [(1, 0), (3, 1)]
    registry.publish_replicas("prefill", started("prefill", "p", "q", "r", lent="pq"))
    assert sizes(changing) == [(1, 0), (4, 0)]


def test_those_that_were_lent_go_back_first(told: Told, registry: FleetRegistry, changing: ServeReplicas) -> None:
    registry.publish_replicas("prefill", started("prefill", "p", "q", "r", lent="qr"))
    changing.change_roles("decode", "prefill", 3, 0.0)
    changing.apply()
    assert told == [("serve", "q", "prefill"), ("serve", "r", "prefill"), ("serve", "d", "prefill")]
    assert sizes(changing) == [(1, 3), (1, 0)]


def test_serve_has_those_that_are_lent_beside_those_started(
    told: Told, registry: FleetRegistry, changing: ServeReplicas
) -> None:
    registry.publish_replicas("prefill", started("prefill", "p", "q", "r", lent="qr"))
    changing.resize("prefill", 2, 0.0)
    changing.resize("decode", 5, 0.0)
    changing.apply()
    assert told == [("spillway", "prefill", 4), ("spillway", "decode", 3)]


def test_a_pool_of_borrowed_replicas_sends_some_back_where_serve_lets_them_go(
    told: Told, registry: FleetRegistry, changing: ServeReplicas
) -> None:
    registry.publish_replicas("prefill", started("prefill", "p", "q", "r", lent="pqr"))
    changing.resize("decode", 1, 0.0)
    changing.apply()
    assert told == [("serve", "p", "prefill"), ("serve", "q", "prefill"), ("spillway", "decode", 0)]
    assert sizes(changing)[0] == (0, 2)


def test_a_replica_that_was_not_told_goes_on_as_before(
    told: Told, changing: ServeReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_replicas.NamedReplicas, "tell", lambda *_: False)
    changing.change_roles("prefill", "decode", 1, 0.0)
    changing.apply()
    assert sizes(changing) == [(3, 0), (2, 0)]


def test_who_has_no_warm_replicas_needs_no_router(told: Told, registry: FleetRegistry) -> None:
    replicas = ServeReplicas("spillway", pools())
    replicas.refresh(0.0)
    replicas.resize("decode", 2, 0.0)
    replicas.apply()
    assert told == [("spillway", "decode", 2)]

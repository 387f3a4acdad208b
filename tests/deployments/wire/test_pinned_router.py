import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from deployments.wire import fleet_registry
from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from deployments.wire.pinned_router import PinnedRouter
from tests.deployments.serve_fakes import FakeReplica, FakeReplicaId, FakeRoutingContext, choices


@dataclass(slots=True)
class FakePending:
    kwargs: Any
    routing_context: FakeRoutingContext = field(default_factory=FakeRoutingContext)


@dataclass(slots=True)
class Listener:
    accepted: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None: ...

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        self.accepted.append((attempt_id, replica_id))

    def on_replica_lost(self, replica_id: str) -> None:
        self.lost.append(replica_id)


@pytest.fixture
def router() -> PinnedRouter:
    """Without Serve's own state, which choosing does not need."""
    return PinnedRouter.__new__(PinnedRouter)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    registry, listener = FleetRegistry(), Listener()
    registry.listen(listener)
    monkeypatch.setattr(fleet_registry, "REGISTRY", registry)
    return listener


def replicas(*names: str) -> list[FakeReplica]:
    return [FakeReplica(FakeReplicaId(name)) for name in names]


def choose(router: PinnedRouter, candidates: list[FakeReplica], pending: object) -> list[list[str]]:
    return asyncio.run(choices(router, candidates, pending))


def test_the_target_is_returned_alone(router: PinnedRouter) -> None:
    assert choose(router, replicas("a", "b", "c"), FakePending({"target": "b"})) == [["b"]]


def test_two_others_are_returned_when_the_target_has_gone(router: PinnedRouter) -> None:
    (rank,) = choose(router, replicas("a", "b", "c"), FakePending({"target": "gone"}))
    assert len(set(rank)) == 2
    assert set(rank) < {"a", "b", "c"}


def test_the_only_replica_is_returned_when_the_target_has_gone(router: PinnedRouter) -> None:
    assert choose(router, replicas("a"), FakePending({"target": "gone"})) == [["a"]]


def test_no_replicas_give_an_empty_rank(router: PinnedRouter) -> None:
    assert choose(router, [], FakePending({"target": "a"})) == [[]]


@pytest.mark.parametrize(
    "pending",
    [None, object(), *map(FakePending, (None, {}, {"target": None}, {"target": ["a"]}, [("target", "a")]))],
    ids=["none", "no_fields", "kwargs_none", "no_target", "target_none", "target_list", "kwargs_list"],
)
def test_an_odd_request_is_routed_by_chance_and_never_raises(router: PinnedRouter, pending: object) -> None:
    (rank,) = choose(router, replicas("a", "b"), pending)
    assert set(rank) == {"a", "b"}


@pytest.mark.parametrize("target", ["a", "gone"])
def test_a_full_rank_makes_the_router_back_off_instead_of_spinning(router: PinnedRouter, target: str) -> None:
    pending = FakePending({"target": target})
    choose(router, replicas("a"), pending)
    assert pending.routing_context.should_backoff


def test_the_replica_that_took_an_attempt_is_passed_on(router: PinnedRouter, listener: Listener) -> None:
    router.on_request_routed(FakePending({"attempt_id": "a-1"}), FakeReplicaId("r-1"), None)
    router.on_request_routed(FakePending({}), FakeReplicaId("r-2"), None)
    assert listener.accepted == [("a-1", "r-1")]

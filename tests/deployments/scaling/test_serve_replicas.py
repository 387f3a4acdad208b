"""What a scaler sees of Serve's replicas, and what Serve is told."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.scaler import PoolSize
from deployments.scaling import serve_replicas
from deployments.scaling.serve_replicas import ServeReplicas


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Serve has an application with one pool; what it is told."""
    states = {"RUNNING": 2, "UPDATING": 1, "STARTING": 3, "STOPPING": 4}
    deployments = {name: SimpleNamespace(replica_states=states) for name in ("decode", "gateway")}
    application = SimpleNamespace(deployments=deployments)
    status = SimpleNamespace(applications={"spillway": application})
    monkeypatch.setattr("ray.serve.status", lambda: status)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(serve_replicas, "resize_deployment", lambda *call: calls.append(call))
    return calls


def test_replicas_are_ready_starting_or_draining(told: list[tuple[Any, ...]]) -> None:
    replicas = ServeReplicas("spillway", ("decode",))
    replicas.refresh(0.0)
    assert replicas.size("decode") == PoolSize(num_ready=3, num_starting=3, num_draining=4)
    assert list(replicas.sizes) == ["decode"]
    assert replicas.size("other") == PoolSize(num_ready=0, num_starting=0, num_draining=0)


def test_an_application_that_is_gone_has_none(told: list[tuple[Any, ...]]) -> None:
    replicas = ServeReplicas("another", ("decode",))
    replicas.refresh(0.0)
    assert replicas.sizes == {}


def test_serve_is_told_once_what_is_wanted(told: list[tuple[Any, ...]]) -> None:
    replicas = ServeReplicas("spillway", ("decode",))
    replicas.refresh(0.0)
    replicas.resize("decode", 8, 0.0)
    assert not told
    replicas.apply()
    replicas.apply()
    assert told == [("spillway", "decode", 8)]

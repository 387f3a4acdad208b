"""Two fake replicas behind the pinned router, and a deployment that calls them many times within one request."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from deployments.wire.fleet_registry import REGISTRY, SeenReplica
from deployments.wire.serve_internals import use_own_internal_request_id


class Echo:
    """A fake replica: says which one it is."""

    def __init__(self) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id

    async def generate(self, *, attempt_id: str, target: str) -> AsyncIterator[str]:
        """Streams its own id, twice."""
        for _ in range(2):
            yield self._name

    def record_replica_metadata(self) -> dict[str, Any]:
        """What the pinned router passes on."""
        return {"pid": os.getpid()}


class Caller:
    """Calls the fake replicas as a gateway does, from one request.

    Args:
        echo: The pool.
    """

    async def __init__(self, echo: DeploymentHandle) -> None:  # type: ignore[misc]
        self._seen: tuple[SeenReplica, ...] = ()
        self._accepted: dict[str, str] = {}
        echo._init()
        self._echo = echo.options(stream=True, method_name="generate", _by_reference=False)
        REGISTRY.listen(self)

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        self._seen = replicas

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        self._accepted[attempt_id] = replica_id

    def on_replica_lost(self, replica_id: str) -> None:
        raise AssertionError(f"{replica_id} is lost")

    async def targets(self) -> dict[str, int]:
        """Process of each replica that the router has announced, by the replica's id."""
        return {each.replica_id: int(each.metadata["pid"]) for each in self._seen}

    async def accepted(self) -> dict[str, str]:
        """The replica that took each attempt, as the router says."""
        return self._accepted

    async def fan_out(self, targets: list[str], with_own_ids: bool, patience_s: float) -> list[list[str] | None]:
        """Calls all targets at once; what each stream gave, or ``None`` where nothing came in time."""
        attempts = [
            asyncio.create_task(self._attempt(f"attempt-{number}", target, with_own_ids))
            for number, target in enumerate(targets)
        ]
        done, pending = await asyncio.wait(attempts, timeout=patience_s)
        for attempt in pending:
            attempt.cancel()
        if pending:
            await asyncio.wait(pending)
        return [attempt.result() if attempt in done else None for attempt in attempts]

    async def _attempt(self, attempt_id: str, target: str, with_own_id: bool) -> list[str]:
        if with_own_id:
            use_own_internal_request_id()
        call = self._echo.remote(attempt_id=attempt_id, target=target)
        try:
            return [said async for said in call]
        finally:
            call.cancel()


def build_fan_out() -> Application:
    """Two replicas and their caller."""
    echo = serve.deployment(
        Echo,
        name="echo",
        num_replicas=2,
        max_ongoing_requests=100,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(request_router_class="deployments.wire.pinned_router.PinnedRouter"),
    )
    caller = serve.deployment(Caller, name="caller", ray_actor_options={"num_cpus": 0.1})
    return caller.bind(echo.bind())

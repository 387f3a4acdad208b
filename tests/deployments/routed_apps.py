"""Plain deployments behind the router of ours, as somebody else would have them."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

REPLICAS = 3


class Named:
    """A replica that says which one it is."""

    def __init__(self) -> None:
        self._name: str = serve.get_replica_context().replica_id.unique_id

    async def name(self, body: dict[str, Any]) -> str:
        """At once."""
        return self._name

    async def hold(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """At once, and goes on until nobody listens any more."""
        yield self._name
        await asyncio.Event().wait()

    async def die(self, body: dict[str, Any]) -> str:
        """The process is gone before it answers."""
        os._exit(1)


class Parent:
    """Makes many calls within one request.

    Args:
        named: Whom it calls.
    """

    def __init__(self, named: DeploymentHandle) -> None:
        self._named = named

    async def names(self, count: int) -> list[str]:
        """Of as many calls side by side."""
        return list(await asyncio.gather(*(self._named.name.remote({"prompt": "Hello"}) for _ in range(count))))


def build_routed(**router_kwargs: Any) -> Application:
    """Three replicas behind our router, and a parent that calls them."""
    router = RequestRouterConfig(
        request_router_class="deployments.serve_router.PolicyRouter", request_router_kwargs=router_kwargs
    )
    options = {"max_ongoing_requests": 100, "ray_actor_options": {"num_cpus": 0.02}}
    named = serve.deployment(Named, name="named", num_replicas=REPLICAS, request_router_config=router, **options)
    return serve.deployment(Parent, name="parent", **options).bind(named.bind())

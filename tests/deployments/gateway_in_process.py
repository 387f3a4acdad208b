"""A whole gateway without Ray: its routes and its service, in front of a replica that answers at once."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvicorn
import yaml
from anyio.from_thread import BlockingPortal, start_blocking_portal
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle
from uvicorn import config as uvicorn_config

from deployments.config import ROOT
from deployments.configuration.models import models_in
from deployments.gateway.gateway import app
from deployments.gateway.service import OpenAIService
from deployments.http.hot_routes import RouteTable
from deployments.wire import inner_hop
from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from engines.contract import Chunk
from engines.emulated.vectors import TokenVectors
from tests.deployments.host_dialogue import Call, Handle
from tests.engines.emulated_engines import ensure_models

CONTEXT_TOKENS = 8192
ANSWER = (Chunk("wa", (300,)), Chunk("ter", (301,), "length"))


VECTOR_VALUES = 16
"""Numbers in a vector."""

Change = tuple[str, str]
"""An adapter's name, and the path that replicas were told of."""


class _ChangesAdapters:
    """A replica that loads whatever is not at ``/nowhere``."""

    def __init__(self, changes: list[Change]) -> None:
        self._changes = changes

    async def remote(self, name: str, path: str, at_unix_s: float, *, target: str) -> str:
        self._changes.append((name, path))
        return f"the adapter {name} can't be loaded" if path == "/nowhere" else ""


class AnsweringHandle(Handle):
    """A pool's handle, whose replicas give every request the same answer, but for so many at first: they get none.

    Where the first one is lost, it gives the first chunk of it, and the others what comes after that.
    """

    def __init__(
        self,
        calls: dict[str, Call],
        method_name: str = "",
        *,
        num_silent: int = 0,
        loses_first: bool = False,
        changes: list[Change] | None = None,
    ) -> None:
        super().__init__(calls, method_name)
        self._num_silent = num_silent
        self._loses_first = loses_first
        self.calls = calls
        self.changes: list[Change] = [] if changes is None else changes
        self.change_adapter = _ChangesAdapters(self.changes)

    def _init(self) -> None: ...

    def options(self, **options: Any) -> "AnsweringHandle":
        method_name = options.get("method_name", "")
        same: dict[str, Any] = {"num_silent": self._num_silent, "loses_first": self._loses_first}
        return AnsweringHandle(self._calls, method_name, changes=self.changes, **same)

    def remote(self, *arguments: bytes, **keywords: Any) -> Call:
        call = super().remote(*arguments, **keywords)
        if self._loses_first and len(self._calls) == 1:
            call.gives(ANSWER[0])
            call.breaks(RayActorError())
        elif len(self._calls) > self._num_silent:
            call.answers(*(_vector_of(arguments[0]) or ANSWER[self._loses_first :]))
        return call


def _vector_of(request: bytes) -> tuple[Chunk, ...]:
    """What becomes of a prompt that is pooled; nothing of another one."""
    asked = inner_hop.decode_request(request)
    if not asked.pooling.task:
        return ()
    num_values = VECTOR_VALUES if asked.pooling.task == "embed" else 1
    vector = TokenVectors(asked.pooling.task, num_values).vector(asked)
    return (Chunk("", (), "stop", cached_tokens=1, vector=vector),)


class Routes(httpx.BaseTransport):
    """Hands requests to the gateway's routes, on the event loop of another thread.

    Args:
        portal: The way there.
    """

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._routes = httpx.ASGITransport(app)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._routes.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


@contextmanager
def served_over_hot_routes(portal: BlockingPortal, service: OpenAIService) -> Iterator[str]:
    """The gateway's routes behind uvicorn, as Serve starts it; gives its URL."""

    def install() -> None:
        table.serve(service.hot_routes())

    table = RouteTable()
    with pytest.MonkeyPatch.context() as patch, socket.socket() as listening:
        patch.setitem(uvicorn_config.HTTP_PROTOCOLS, "auto", uvicorn_config.HTTP_PROTOCOLS["auto"])
        patch.setattr("deployments.http.hot_routes.ROUTES", table)
        portal.call(install)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=5)
        )
        serving = portal.start_task_soon(server.serve, [listening])
        yield "http://{}:{}".format(*listening.getsockname())
        server.should_exit = True
        serving.result(timeout=10)


@contextmanager
def gateway_in_process(
    *, num_silent: int = 0, loses_first: bool = False, is_hot: bool = False, **gateway: Any
) -> Iterator[httpx.Client]:
    """A client of ``local-vllm.yaml``'s model on one replica, or of other ``models``; more is laid over ``gateway``.

    The first ``num_silent`` requests get no token. ``loses_first``: the first request's replica is lost in the middle
    of its answer, and there is another one. ``is_hot``: over a socket, and past FastAPI where that is so on Serve.
    """
    with service_in_process(num_silent=num_silent, loses_first=loses_first, **gateway) as (portal, service):
        if is_hot:
            with served_over_hot_routes(portal, service) as url, httpx.Client(base_url=url) as client:
                yield client
        else:
            with httpx.Client(transport=Routes(portal), base_url="http://gateway") as client:
                yield client


@contextmanager
def service_in_process(
    *,
    num_silent: int = 0,
    loses_first: bool = False,
    models: Sequence[dict[str, Any]] = (),
    handles: dict[str, AnsweringHandle] | None = None,
    **gateway: Any,
) -> Iterator[tuple[BlockingPortal, OpenAIService]]:
    """The same service, and the way to its event loop; where ``models`` are given, with these, on a replica each.

    ``handles`` is filled with those of the pools.
    """
    ensure_models()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "local-vllm.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified"}]
    args["gateway"] |= gateway
    args["policies"] = {"planning": "always_unified"}
    if models:
        del args["model"], args["pools"]
        args["models"] = models
    served, registry = models_in(args), FleetRegistry()
    replicas = "ab" if loses_first else "a"
    names = [pool.name for each in served for pool in each.pools]
    handles = {} if handles is None else handles
    handles |= {name: AnsweringHandle({}, num_silent=num_silent, loses_first=loses_first) for name in names}
    pools = {name: cast(DeploymentHandle, handle) for name, handle in handles.items()}
    with pytest.MonkeyPatch.context() as patch, start_blocking_portal() as portal:
        patch.setattr("deployments.gateway.service.REGISTRY", registry)
        service = portal.call(OpenAIService, served, pools, "gateway-a")
        routed_to = SimpleNamespace(servable_object=SimpleNamespace(_service=service))
        patch.setattr("ray.serve.get_replica_context", lambda: routed_to)
        for name in names:
            registry.publish_replicas(name, tuple(_replica_of(name, each) for each in replicas))
        yield portal, service
        portal.call(service.close)


def _replica_of(pool: str, name: str) -> SeenReplica:
    return SeenReplica(
        replica_id=f"{pool}-{name}",
        node_id="node",
        max_ongoing_requests=1_000,
        metadata={"kv_capacity_tokens": 1 << 20, "context_tokens": CONTEXT_TOKENS, "max_adapters": 2},
    )

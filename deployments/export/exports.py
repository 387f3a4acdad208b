"""Where counts go: to the board of all gateways, to Ray's metrics agent, and onto the page that is asked for."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from prometheus_client.core import Metric
from ray import serve

from deployments.export.board_actor import BOARD
from deployments.export.ray_mirror import RayMirror
from deployments.telemetry.board import GATEWAY_LABEL, Snapshot, metrics_of, text_of
from deployments.telemetry.digest import GatewayDigest, digest_of
from deployments.telemetry.metrics import GatewayMetrics
from deployments.wire.actor_client import ActorClient, NoAnswerError

LOGGER = logging.getLogger("ray.serve")
PERIOD_S = 2.0
"""Between two copies: how old other gateways' counts on a page may be."""
NUM_MIRROR_PARTS = 4
"""Copies in which Ray has been told everything again: 8 s, of the 20 s after which it drops a gauge."""
PATIENCE_S = 1.0
"""How long the board may take for an answer. Prometheus gives a scrape ten seconds by default."""


class Board(Protocol):
    """Where gateways' counts come together."""

    async def put(self, own: Sequence[Metric]) -> None:
        """Tells it what this gateway counts."""
        ...

    async def page(self, snapshot: Snapshot) -> bytes:
        """The page with everybody's counts."""
        ...

    async def digests(self, own: GatewayDigest) -> Mapping[str, GatewayDigest]:
        """Everybody's counts in short, by gateway."""
        ...


class Mirror(Protocol):
    """Another place where counts are shown."""

    def show(self, metrics: Iterable[Metric]) -> None:
        """Makes what is shown there what they are now."""
        ...


class NoBoard:
    """For a gateway by itself.

    Args:
        gateway: Its name.
    """

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway

    async def put(self, own: Sequence[Metric]) -> None:
        """Nobody else wants to know."""

    async def page(self, snapshot: Snapshot) -> bytes:
        """Its own counts are all there are. Made on the gateway's loop, a metric at a time: tokens go in between."""
        parts = []
        for metric in metrics_of({self._gateway: snapshot.own}, snapshot.fleet):
            parts.append(text_of(metric))
            await asyncio.sleep(0)
        return b"".join(parts)

    async def digests(self, own: GatewayDigest) -> Mapping[str, GatewayDigest]:
        return {self._gateway: own}


class BoardClient:
    """A gateway's way to the board; without an answer, the page has this gateway's counts alone.

    Args:
        gateway: Names this gateway.
        find: Gives a handle of the board's actor; blocks; see :class:`deployments.wire.actor_client.ActorClient`.
    """

    def __init__(self, gateway: str, find: Callable[[], Any] = lambda: serve.get_deployment_actor(BOARD)) -> None:
        self._gateway = gateway
        self._board = ActorClient("the board of metrics", find)
        self._alone = NoBoard(gateway)

    async def put(self, own: Sequence[Metric]) -> None:
        with suppress(NoAnswerError):  # the next one will come
            await self._ask("put", own)

    async def page(self, snapshot: Snapshot) -> bytes:
        try:
            page: bytes = await self._ask("page", snapshot)
        except NoAnswerError:
            return await self._alone.page(snapshot)
        return page

    async def digests(self, own: GatewayDigest) -> Mapping[str, GatewayDigest]:
        try:
            digests: Mapping[str, GatewayDigest] = await self._ask("digests", own)
        except NoAnswerError:
            return await self._alone.digests(own)
        return digests

    async def _ask(self, what: str, argument: object) -> Any:
        return await self._board.ask(what, self._gateway, argument, patience_s=PATIENCE_S)


class MetricsExport:
    """Copies a gateway's counts every so often, and makes its page. Replicas copy what they report themselves.

    Args:
        metrics: What is counted.
        board: Where gateways' counts come together.
        mirror: Where else they are shown.
        period_s: Between two copies.
    """

    def __init__(self, metrics: GatewayMetrics, board: Board, mirror: Mirror, *, period_s: float = PERIOD_S) -> None:
        self._metrics = metrics
        self._board = board
        self._mirror = mirror
        self._period_s = period_s
        self._task = asyncio.get_running_loop().create_task(self._copy_for_ever())

    def close(self) -> None:
        """No more copies."""
        self._task.cancel()

    async def page(self) -> bytes:
        """What Prometheus reads."""
        return await self._board.page(self._metrics.snapshot())

    async def digests(self) -> Mapping[str, GatewayDigest]:
        """What each gateway counts, in short."""
        return await self._board.digests(digest_of(self._metrics.own()))

    async def _copy_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                own = self._metrics.own()
                self._mirror.show([*own, *self._metrics.fleet()])
                await self._board.put(own)
            except Exception:
                LOGGER.exception("metrics could not be copied")


def export_of(metrics: GatewayMetrics, gateway: str, num_gateways: int) -> MetricsExport:
    """For one of so many gateways."""
    board = BoardClient(gateway) if num_gateways > 1 else NoBoard(gateway)
    return MetricsExport(metrics, board, RayMirror(num_parts=NUM_MIRROR_PARTS, **{GATEWAY_LABEL: gateway}))

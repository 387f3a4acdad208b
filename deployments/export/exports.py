"""Where counts go: to the aggregator of all gateways, to Ray's metrics agent, and onto the page that is asked for."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from prometheus_client.core import Metric
from ray import serve

from deployments.export.aggregator_actor import AGGREGATOR
from deployments.export.ray_mirror import RayMirror
from deployments.telemetry.aggregation import GATEWAY_LABEL, Snapshot, metrics_of, text_of
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.summary import GatewaySummary, summary_of
from deployments.wire.actor_client import ActorClient, NoAnswerError

LOGGER = logging.getLogger("ray.serve")
PERIOD_S = 2.0
"""Between two copies: how old other gateways' counts on a page may be."""
NUM_MIRROR_PARTS = 4
"""Copies in which Ray has been told everything again: 8 s, of the 20 s after which it drops a gauge."""
PATIENCE_S = 1.0
"""How long the aggregator may take for an answer. Prometheus gives a scrape ten seconds by default."""


class Aggregator(Protocol):
    """Where gateways' counts come together."""

    async def put(self, own: Sequence[Metric]) -> None:
        """Tells it what this gateway counts."""
        ...

    async def page(self, snapshot: Snapshot) -> bytes:
        """The page with everybody's counts."""
        ...

    async def summaries(self, own: GatewaySummary) -> Mapping[str, GatewaySummary]:
        """Everybody's counts in short, by gateway."""
        ...


class Mirror(Protocol):
    """Another place where counts are shown."""

    def show(self, metrics: Iterable[Metric]) -> None:
        """Makes what is shown there what they are now."""
        ...


class NoAggregator:
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

    async def summaries(self, own: GatewaySummary) -> Mapping[str, GatewaySummary]:
        return {self._gateway: own}


class AggregatorClient:
    """A gateway's way to the aggregator; without an answer, the page has this gateway's counts alone.

    Args:
        gateway: Names this gateway.
        find: Gives a handle of the aggregator's actor; blocks; see :class:`deployments.wire.actor_client.ActorClient`.
    """

    def __init__(self, gateway: str, find: Callable[[], Any] = lambda: serve.get_deployment_actor(AGGREGATOR)) -> None:
        self._gateway = gateway
        self._aggregator = ActorClient("the metrics aggregator", find)
        self._alone = NoAggregator(gateway)

    async def put(self, own: Sequence[Metric]) -> None:
        with suppress(NoAnswerError):  # the next one will come
            await self._ask("put", own)

    async def page(self, snapshot: Snapshot) -> bytes:
        try:
            page: bytes = await self._ask("page", snapshot)
        except NoAnswerError:
            return await self._alone.page(snapshot)
        return page

    async def summaries(self, own: GatewaySummary) -> Mapping[str, GatewaySummary]:
        try:
            summaries: Mapping[str, GatewaySummary] = await self._ask("summaries", own)
        except NoAnswerError:
            return await self._alone.summaries(own)
        return summaries

    async def _ask(self, what: str, argument: object) -> Any:
        return await self._aggregator.ask(what, self._gateway, argument, patience_s=PATIENCE_S)


class MetricsExport:
    """Copies a gateway's counts every so often, and makes its page. Replicas copy what they report themselves.

    Args:
        metrics: What is counted.
        aggregator: Where gateways' counts come together.
        mirror: Where else they are shown.
        period_s: Between two copies.
    """

    def __init__(
        self, metrics: GatewayMetrics, aggregator: Aggregator, mirror: Mirror, *, period_s: float = PERIOD_S
    ) -> None:
        self._metrics = metrics
        self._aggregator = aggregator
        self._mirror = mirror
        self._period_s = period_s
        self._task = asyncio.get_running_loop().create_task(self._copy_for_ever())

    def close(self) -> None:
        """No more copies."""
        self._task.cancel()

    async def page(self) -> bytes:
        """What Prometheus reads."""
        return await self._aggregator.page(self._metrics.snapshot())

    async def summaries(self) -> Mapping[str, GatewaySummary]:
        """What each gateway counts, in short."""
        return await self._aggregator.summaries(summary_of(self._metrics.own()))

    async def _copy_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                own = self._metrics.own()
                self._mirror.show([*own, *self._metrics.fleet()])
                await self._aggregator.put(own)
            except Exception:
                LOGGER.exception("metrics could not be copied")


def export_of(metrics: GatewayMetrics, gateway: str, num_gateways: int) -> MetricsExport:
    """For one of so many gateways."""
    aggregator = AggregatorClient(gateway) if num_gateways > 1 else NoAggregator(gateway)
    return MetricsExport(metrics, aggregator, RayMirror(num_parts=NUM_MIRROR_PARTS, **{GATEWAY_LABEL: gateway}))

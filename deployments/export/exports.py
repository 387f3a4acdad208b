"""Where counts go: to the aggregator of all gateways, to Ray's metrics agent, and onto the page that is asked for."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from prometheus_client.core import Metric
from ray import serve

from deployments.export.aggregator_actor import AGGREGATOR
from deployments.export.ray_mirror import RayMirror
from deployments.telemetry.aggregation import (
    GATEWAY_LABEL,
    NO_MODEL,
    ByModel,
    Snapshot,
    metrics_of,
    summaries_of,
    text_of,
)
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.service_metrics import ServiceMetrics
from deployments.telemetry.summary import SummaryByModel
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

    async def put(self, own: ByModel) -> None:
        """Tells it what this gateway counts."""
        ...

    async def page(self, snapshot: Snapshot) -> bytes:
        """The page with everybody's counts."""
        ...

    async def summaries(self, own: SummaryByModel) -> Mapping[str, SummaryByModel]:
        """Everybody's counts in short, by gateway."""
        ...


class Mirror(Protocol):
    """Another place where counts are shown."""

    def show(self, by_model: Mapping[str, Iterable[Metric]]) -> None:
        """Makes what is shown there what they are now."""
        ...


class NoAggregator:
    """For a gateway by itself.

    Args:
        gateway: Its name.
    """

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway

    async def put(self, own: ByModel) -> None:
        """Nobody else wants to know."""

    async def page(self, snapshot: Snapshot) -> bytes:
        """Its own counts are all there are. Made on the gateway's loop, a metric at a time: tokens go in between."""
        parts = []
        for metric in metrics_of({self._gateway: snapshot.own}, snapshot.fleet):
            parts.append(text_of(metric))
            await asyncio.sleep(0)
        return b"".join(parts)

    async def summaries(self, own: SummaryByModel) -> Mapping[str, SummaryByModel]:
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

    async def put(self, own: ByModel) -> None:
        with suppress(NoAnswerError):  # the next one will come
            await self._ask("put", own)

    async def page(self, snapshot: Snapshot) -> bytes:
        try:
            page: bytes = await self._ask("page", snapshot)
        except NoAnswerError:
            return await self._alone.page(snapshot)
        return page

    async def summaries(self, own: SummaryByModel) -> Mapping[str, SummaryByModel]:
        try:
            summaries: Mapping[str, SummaryByModel] = await self._ask("summaries", own)
        except NoAnswerError:
            return await self._alone.summaries(own)
        return summaries

    async def _ask(self, what: str, argument: object) -> Any:
        return await self._aggregator.ask(what, self._gateway, argument, patience_s=PATIENCE_S)


class GatewayCounts:
    """All that one gateway counts.

    Args:
        service: What belongs to no model.
        models: What does, by the model's id.
    """

    def __init__(self, service: ServiceMetrics, models: Mapping[str, GatewayMetrics]) -> None:
        self._service = service
        self._models = models

    def own(self) -> ByModel:
        """Its own requests and decisions."""
        return {NO_MODEL: self._service.own(), **{model: each.own() for model, each in self._models.items()}}

    def fleet(self) -> ByModel:
        """What only a gateway can tell of replicas."""
        return {model: each.fleet() for model, each in self._models.items()}

    def snapshot(self) -> Snapshot:
        """Everything that is counted, and what is known of replicas, their own reports included."""
        fleet = {model: (*each.fleet(), *each.reports()) for model, each in self._models.items()}
        return Snapshot(own=self.own(), fleet=fleet)


class MetricsExport:
    """Copies a gateway's counts every so often, and makes its page. Replicas copy what they report themselves.

    Args:
        counts: What is counted.
        aggregator: Where gateways' counts come together.
        mirror: Where else they are shown.
        period_s: Between two copies.
    """

    def __init__(
        self, counts: GatewayCounts, aggregator: Aggregator, mirror: Mirror, *, period_s: float = PERIOD_S
    ) -> None:
        self._counts = counts
        self._aggregator = aggregator
        self._mirror = mirror
        self._period_s = period_s
        self._task = asyncio.get_running_loop().create_task(self._copy_for_ever())

    def close(self) -> None:
        """No more copies."""
        self._task.cancel()

    async def page(self) -> bytes:
        """What Prometheus reads."""
        return await self._aggregator.page(self._counts.snapshot())

    async def summaries(self) -> Mapping[str, SummaryByModel]:
        """What each gateway counts, in short."""
        return await self._aggregator.summaries(summaries_of(self._counts.own()))

    async def _copy_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                own, fleet = self._counts.own(), self._counts.fleet()
                self._mirror.show({model: (*metrics, *fleet.get(model, ())) for model, metrics in own.items()})
                await self._aggregator.put(own)
            except Exception:
                LOGGER.exception("metrics could not be copied")


def export_of(counts: GatewayCounts, gateway: str, num_gateways: int) -> MetricsExport:
    """For one of so many gateways."""
    aggregator = AggregatorClient(gateway) if num_gateways > 1 else NoAggregator(gateway)
    return MetricsExport(counts, aggregator, RayMirror(num_parts=NUM_MIRROR_PARTS, **{GATEWAY_LABEL: gateway}))

"""What one gateway counts of a model, as text."""

from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from deployments.telemetry.metrics import GatewayMetrics


class _Snapshot(Collector):
    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        metrics = self._metrics
        return [*metrics.own(), *metrics.fleet(), *metrics.reports()]


def text_of(metrics: GatewayMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(_Snapshot(metrics))
    return generate_latest(registry).decode()

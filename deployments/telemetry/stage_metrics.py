"""How long requests spend on each stage of their way, as histograms."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.latency_budget import LatencyStage, Timeline, spent_s
from deployments.telemetry.bucket_counts import BucketCounts

BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
"""From what parsing takes to what an answer takes."""


class StageMetrics(Collector):
    """A histogram for each stage.

    Args:
        registry: Where they are to be found.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._spreads = {stage: BucketCounts(BUCKETS_S) for stage in LatencyStage}
        registry.register(self)

    def observe(self, timeline: Timeline) -> None:
        """One request is over, and its answer has left."""
        for stage, each_s in spent_s(timeline).items():
            if each_s:
                self._spreads[stage].add(each_s)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "spillway_request_stage_seconds",
            "What requests that came to it spent on a stage, whatever their outcome.",
            labels=["stage"],
        )
        for stage, spread in self._spreads.items():
            family.add_metric([stage.value], spread.buckets(), spread.sum)
        yield family

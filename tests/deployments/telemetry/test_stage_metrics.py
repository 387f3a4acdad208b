"""What is counted of the stages of requests."""

import pytest
from prometheus_client import CollectorRegistry

from cluster.latency_budget import LatencyStage, Span
from deployments.telemetry.stage_metrics import StageMetrics

NAME = "spillway_request_stage_seconds"


def test_a_stage_in_two_parts_is_counted_once_and_one_that_never_was_is_not() -> None:
    registry = CollectorRegistry()
    metrics = StageMetrics(registry)

    metrics.observe(
        [Span(LatencyStage.QUEUE, 1.0, 1.5), Span(LatencyStage.PREFILL, 1.5, 2.0), Span(LatencyStage.QUEUE, 2.0, 2.25)]
    )

    count = {each: registry.get_sample_value(f"{NAME}_count", {"stage": each.value}) for each in LatencyStage}
    assert count == {each: float(each in (LatencyStage.QUEUE, LatencyStage.PREFILL)) for each in LatencyStage}
    assert registry.get_sample_value(f"{NAME}_sum", {"stage": "queue"}) == pytest.approx(0.75)

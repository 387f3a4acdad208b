"""What is counted of the stages of requests."""

import pytest
from prometheus_client import CollectorRegistry

from deployments.telemetry.latency_budget import Span, Stage
from deployments.telemetry.stage_metrics import StageMetrics

NAME = "spillway_request_stage_seconds"


def test_a_stage_in_two_parts_is_counted_once_and_one_that_never_was_is_not() -> None:
    registry = CollectorRegistry()
    metrics = StageMetrics(registry)

    metrics.observe([Span(Stage.QUEUE, 1.0, 1.5), Span(Stage.PREFILL, 1.5, 2.0), Span(Stage.QUEUE, 2.0, 2.25)])

    count = {each: registry.get_sample_value(f"{NAME}_count", {"stage": each.value}) for each in Stage}
    assert count == {each: float(each in (Stage.QUEUE, Stage.PREFILL)) for each in Stage}
    assert registry.get_sample_value(f"{NAME}_sum", {"stage": "queue"}) == pytest.approx(0.75)

"""A gateway that has counted something of everything, so that every metric has samples with all its labels."""

from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster.latency_budget import LatencyStage, Span
from deployments.export.exports import GatewayCounts
from deployments.telemetry.aggregation import page_of
from deployments.telemetry.answer_metrics import Answered
from deployments.telemetry.collectors import LANE_GAUGES, LENGTH_GAUGES, POOL_GAUGES, QUEUE_GAUGES, REPLICA_GAUGES
from deployments.telemetry.metrics import CanaryResult, GatewayMetrics, ProbeResult
from deployments.telemetry.service_metrics import ServiceMetrics
from deployments.telemetry.work.work_meter import AttemptWork
from deployments.telemetry.work.work_spread import MIN_VALUES, WINDOW_S
from deployments.wire.fleet_registry import SeenReplica
from policies.decisions import EjectionReason, Reason
from policies.views import Priority, Role
from routing.breakers.breaker import FailureKind, PolicyFailure
from routing.intake.slos import NO_SLOS
from routing.lanes.lanes import Lane
from routing.request.effects import (
    ClientRetry,
    Degraded,
    Ejection,
    Link,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Race,
    Replan,
    Resumption,
    Retry,
    ToldBy,
)
from routing.sizing.geometry import ServiceRates

RATES = ServiceRates(step_s=0.01, new_token_s=1e-5, context_token_s=1e-8)
REPLICA = SeenReplica(
    replica_id="a",
    node_id="node-1",
    max_ongoing_requests=8,
    metadata={"role": "decode", "pid": 42, "kv_capacity_tokens": 1000, "max_num_seqs": 8},
    stats=dict.fromkeys(REPLICA_GAUGES, 1.0),
)
ANSWERED = Answered(
    lane="short",
    priority="standard",
    outcome=Outcome(kind=OutcomeKind.COMPLETED),
    prompt_tokens=100,
    cached_tokens=0,
    expected_cached_tokens=0,
    output_tokens=3,
    waited_s=0.1,
    ttft_s=0.2,
    longest_gap_s=0.1,
    e2e_s=0.5,
    is_computed=True,
)
ATTEMPT = AttemptWork(stage=Role.UNIFIED, prompt_tokens=100, computed_tokens=90, output_tokens=3)
MODEL = "tiny-llama"
LANE = Lane(name="short", pools=("decode",), ttft_slo_s=1.0)
GAUGES = {
    **{f"{name}:short": 1.0 for name in LANE_GAUGES if name.startswith("lane_")},
    **{name: 1.0 for name in LANE_GAUGES if not name.startswith("lane_")},
    **{f"{name}:decode": 1.0 for name in POOL_GAUGES},
    **{f"{name}:all": 1.0 for name in LENGTH_GAUGES},
    **{f"{name}:standard:decode": 1.0 for name in QUEUE_GAUGES},
}


def counted() -> GatewayMetrics:
    """A model's metrics."""
    metrics = GatewayMetrics(RATES)
    _watch(metrics)
    _count_requests(metrics)
    _count_decisions(metrics)
    return metrics


def counts() -> GatewayCounts:
    """All that a gateway with one model counts."""
    service = ServiceMetrics()
    service.count_error(400, "invalid_value")
    service.count_reload(is_applied=True)
    return GatewayCounts(service, {MODEL: counted()})


def families() -> Iterator[Metric]:
    """As a reader finds them on the page, but for the times at which counters were made."""
    snapshot = counts().snapshot()
    page = page_of({"g": snapshot.own}, snapshot.fleet).decode()
    for family in text_string_to_metric_families(page):
        if not family.name.endswith("_created"):
            yield family


def name_of(family: Metric) -> str:
    """What a list for people names: a histogram by its name alone."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _watch(metrics: GatewayMetrics) -> None:
    metrics.watch(lambda: {"decode": (REPLICA,)}, lambda: 1, lambda: 0)
    metrics.watch_lanes((LANE,), NO_SLOS, lambda: GAUGES)
    metrics.watch_cache(lambda: 0.0)


def _count_requests(metrics: GatewayMetrics) -> None:
    for number in range(MIN_VALUES + 1):
        metrics.count_arrival(100, number * WINDOW_S)
    metrics.count_answer(msgspec.structs.replace(ANSWERED, cached_tokens=10, expected_cached_tokens=20))
    metrics.count_attempt(LANE.name, Priority.STANDARD, ATTEMPT)
    metrics.count_slos(LANE.name, {"ttft": 1.0}, 0.2, 0.1, has_canary=True)
    spans = [Span(LatencyStage.DECODE, 0.0, 1.0)]
    metrics.count_times(LANE.name, spans, prompt_tokens=100, cached_tokens=0, output_tokens=10)
    metrics.count_cache_lookup(is_hit=True)
    metrics.count_exchange(is_answered=True)


def _count_decisions(metrics: GatewayMetrics) -> None:
    q: Any = {"request_id": "q", "attempt_id": "q.0"}
    metrics.count_reconnection("resumed")
    metrics.count_client_retry(ClientRetry(request_id="q", told_by=ToldBy.KEY, link=Link.KEY, first_request_id="p"))
    metrics.count_placement(Placement(**q, replica_id="a", num_candidates=1, is_hedge=False, adapter="tiny-lora"))
    metrics.count_race(Race(**q, is_hedge=True, superseded_tokens=1))
    metrics.observe_cancel(0.1)
    metrics.count_going_on(Preemption(**q, output_tokens=1))
    metrics.count_going_on(Resumption(**q, output_tokens=1))
    metrics.count_policy_failure(
        PolicyFailure(question="balancing", policy="", kind=FailureKind.RAISED, said="", is_left_out=False)
    )
    metrics.count_replan(Replan(request_id="q", plan=(Role.UNIFIED,), instead_of=(Role.PREFILL, Role.DECODE)))
    metrics.count_retry(Retry(**q, reason=Reason.REPLICA_LOST, after_s=1.0))
    metrics.count_degraded(
        Degraded(request_id="q", priority=Priority.STANDARD, max_output_tokens=1, asked_output_tokens=2)
    )
    ejection = Ejection(replica_id="a", pool="decode", reason=EjectionReason.FAILURES, until_s=1.0)
    metrics.count_ejection(ejection)
    metrics.count_probe("decode", ProbeResult.WELL)
    metrics.count_canary_ejection(ejection)
    metrics.count_canary_attempt(CanaryResult.FINISHED)

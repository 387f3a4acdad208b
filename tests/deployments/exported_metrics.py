"""Every metric that a gateway exports, when there is something to be said of everything."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from deployments.export import ray_mirror
from deployments.export.exports import MetricsExport, NoBoard
from deployments.export.ray_mirror import RayMirror
from deployments.openai.client_retries import ToldBy
from deployments.telemetry.answer_metrics import Answered
from deployments.telemetry.board import GATEWAY_LABEL, page_of
from deployments.telemetry.collectors import LANE_GAUGES, POOL_GAUGES, QUEUE_GAUGES, REPLICA_GAUGES, reported
from deployments.telemetry.latency_budget import Span, Stage
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.work_meter import AttemptWork
from deployments.wire.fleet_registry import SeenReplica
from policies.decisions import EjectionReason, Reason
from policies.views import Priority, RequestView, Role
from routing.lanes.lanes import Lane
from routing.request.effects import (
    Degraded,
    Ejection,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Race,
    Resumption,
    Retry,
)
from routing.sizing.geometry import ServiceRates
from tests.waiting import until

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
    output_tokens=3,
    waited_s=0.1,
    ttft_s=0.2,
    longest_gap_s=0.1,
    e2e_s=0.5,
    is_computed=True,
)
REQUEST = RequestView(request_id="q", prompt_tokens=100, max_output_tokens=50, arrival_s=0.0, deadline_s=60.0)
ATTEMPT = AttemptWork(stage=Role.UNIFIED, prompt_tokens=100, computed_tokens=90, output_tokens=3)
LANE = Lane(name="short", pools=("decode",), ttft_slo_s=1.0)
GAUGES = {
    **{f"{name}:short": 1.0 for name in LANE_GAUGES if name.startswith("lane_")},
    **{name: 1.0 for name in LANE_GAUGES if not name.startswith("lane_")},
    **{f"{name}:decode": 1.0 for name in POOL_GAUGES},
    **{f"{name}:standard:decode": 1.0 for name in QUEUE_GAUGES},
}


def exported() -> GatewayMetrics:
    """A gateway that has counted something of everything."""
    metrics = GatewayMetrics(RATES)
    _watch(metrics)
    _count_requests(metrics)
    _count_decisions(metrics)
    return metrics


def _watch(metrics: GatewayMetrics) -> None:
    metrics.watch(lambda: {"decode": (REPLICA,)}, lambda: 1, lambda: 0)
    metrics.watch_lanes((LANE,), lambda: GAUGES)
    metrics.watch_cache(lambda: 0.0)


def _count_requests(metrics: GatewayMetrics) -> None:
    metrics.count_answer(msgspec.structs.replace(ANSWERED, cached_tokens=10))
    metrics.count_attempt(LANE.name, REQUEST.priority, ATTEMPT)
    metrics.count_promises(LANE, 0.2, 0.1)
    metrics.stages.observe([Span(Stage.DECODE, 0.0, 1.0)])
    metrics.count_error(400, "invalid_value")
    metrics.count_client_retry(ToldBy.KEY)
    metrics.count_cache_lookup(is_hit=True)
    metrics.count_exchange(is_answered=True)
    metrics.count_reload(is_applied=True)


def _count_decisions(metrics: GatewayMetrics) -> None:
    q: dict[str, str] = {"request_id": "q", "attempt_id": "q.0"}
    metrics.count_placement(Placement(**q, replica_id="a", num_candidates=1, is_hedge=False))
    metrics.count_race(Race(**q, is_hedge=True, superseded_tokens=1))
    metrics.observe_cancel(0.1)
    metrics.count_going_on(Preemption(**q, output_tokens=1))
    metrics.count_going_on(Resumption(**q, output_tokens=1))
    metrics.count_retry(Retry(**q, reason=Reason.REPLICA_LOST, after_s=1.0))
    metrics.count_degraded(
        Degraded(request_id="q", priority=Priority.STANDARD, max_output_tokens=1, asked_output_tokens=2)
    )
    metrics.count_ejection(Ejection(replica_id="a", pool="decode", reason=EjectionReason.FAILURES, until_s=1.0))


def exported_page() -> str:
    snapshot = exported().snapshot()
    return page_of({"g": snapshot.own}, snapshot.fleet).decode()


def families() -> Iterator[Metric]:
    """As a reader finds them on the page, but for the times at which counters were made."""
    for family in text_string_to_metric_families(exported_page()):
        if not family.name.endswith("_created"):
            yield family


def series_labels() -> dict[str, set[str]]:
    """What a query may name: every series of the page with its labels, a histogram's buckets, sum and count too."""
    found: dict[str, set[str]] = {}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def mirrored_labels() -> dict[str, set[str]]:
    """The same where Ray's agents are asked: what a gateway and a replica tell Ray, without the labels that it adds."""
    told: dict[str, set[str]] = {}

    class Told:
        def __init__(self, name: str, text: str, tag_keys: tuple[str, ...]) -> None:
            self._name = f"ray_{name}"

        def inc(self, value: float, tags: dict[str, str]) -> None:
            told.setdefault(self._name, set()).update(tags)

        set = inc

    async def copy() -> None:
        mirror = RayMirror(num_parts=1, **{GATEWAY_LABEL: "g"})
        export = MetricsExport(exported(), NoBoard("g"), mirror, period_s=0.001)
        await until(lambda: bool(told), "a copy")
        export.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_mirror, "Gauge", Told)
        patch.setattr(ray_mirror, "Counter", Told)
        asyncio.run(copy())
        RayMirror().show(reported("decode", REPLICA))
    return told


def metric_names() -> set[str]:
    """What a list for people names: a histogram by its name alone."""
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families()}

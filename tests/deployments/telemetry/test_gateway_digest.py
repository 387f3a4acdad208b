"""The summary of what a gateway counts, made from real metrics."""

import math

import msgspec
from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily

from cluster.latency_budget import LatencyStage, Span
from deployments.reference.counted import ANSWERED
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.summary import READ, GatewaySummary, QueueSummary, summary_of
from policies import Reason
from routing import Outcome, OutcomeKind
from routing.intake.slos import NO_SLOS, of_lane
from routing.lanes.lanes import Lane

SHED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED)
LANE = Lane(name="short", pools=("unified",), ttft_slo_s=0.5)
GAUGES = {
    "lane_requests_total:short": 4.0,
    "lane_border_tokens:short": 512.0,
    "queue_requests:standard:prefill": 2.0,
    "queue_work_seconds:standard:prefill": 1.5,
    "queue_oldest_age_seconds:standard:prefill": 0.25,
    "shed_fraction": 0.1,
    "ejected_replicas:decode": 1.0,
}


def counting() -> GatewayMetrics:
    metrics = GatewayMetrics()
    metrics.watch(dict, lambda: 3, lambda: 2)
    metrics.watch_lanes((LANE,), NO_SLOS, lambda: GAUGES)
    return metrics


def count_times(metrics: GatewayMetrics) -> None:
    spans = [Span(LatencyStage.QUEUE, 0.0, 1.0), Span(LatencyStage.DECODE, 1.0, 3.0)]
    metrics.count_times("short", spans, prompt_tokens=10, cached_tokens=0, output_tokens=20)


def digest(metrics: GatewayMetrics) -> GatewaySummary:
    return summary_of(metrics.own())


def test_everything_that_a_digest_reads_is_counted_under_that_name() -> None:
    metrics = counting()
    metrics.count_answer(ANSWERED)
    count_times(metrics)
    names = {sample.name for metric in metrics.own() for sample in metric.samples}
    assert set(READ) <= names


def test_requests_are_told_apart_by_outcome_and_reason() -> None:
    metrics = counting()
    metrics.count_answer(ANSWERED)
    metrics.count_answer(replace(ANSWERED, priority="critical"))
    metrics.count_answer(replace(ANSWERED, outcome=SHED, ttft_s=math.inf))
    found = digest(metrics)

    assert found.requests == {"completed": 2.0, "refused shed": 1.0}
    assert found.open == 3.0
    assert (found.ttft["0.1"], found.ttft["0.25"], found.ttft["+Inf"]) == (0.0, 2.0, 2.0)


def test_promises_have_a_lane_and_begin_at_nothing() -> None:
    metrics = counting()
    assert digest(metrics).slos == {"short": {"ttft": {"true": 0.0, "false": 0.0}}}
    metrics.count_slos(LANE.name, of_lane(LANE).limits_s(1), 0.4, 0.01)
    metrics.count_slos(LANE.name, of_lane(LANE).limits_s(1), 0.6, 0.01)
    assert digest(metrics).slos["short"]["ttft"] == {"true": 1.0, "false": 1.0}


def test_what_the_dispatcher_says_of_lines_lanes_and_pools_is_there() -> None:
    found = digest(counting())
    assert found.queues == [QueueSummary(queue="prefill", priority="standard", requests=2.0, work_s=1.5, oldest_s=0.25)]
    assert (found.lane_requests, found.border_tokens) == ({"short": 4.0}, {"short": 512.0})
    assert (found.shed_fraction, found.ejected) == (0.1, {"decode": 1.0})


def test_what_requests_lose_time_to_is_told_apart_by_lane() -> None:
    metrics = counting()
    assert digest(metrics).bounds == {}
    count_times(metrics)
    bounds = digest(metrics).bounds["short"]
    assert {bound: round(seconds, 2) for bound, seconds in bounds.items() if seconds} == {"engine": 2.0, "queue": 1.0}


def test_labels_that_it_does_not_know_are_added_up() -> None:
    requests = CounterMetricFamily("spillway_requests", "Requests.", labels=["outcome", "reason", "node"])
    requests.add_metric(["completed", "", "one"], 2.0)
    requests.add_metric(["completed", "", "other"], 3.0)
    assert summary_of([requests]).requests == {"completed": 5.0}


def test_it_can_be_sent_as_json() -> None:
    found = digest(counting())
    assert msgspec.json.decode(msgspec.json.encode(found), type=GatewaySummary) == found

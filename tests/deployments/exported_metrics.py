"""Every metric that a gateway exports, when there is something to be said of everything."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from deployments.answer_metrics import Answered
from deployments.fleet_registry import SeenReplica
from deployments.metric_collectors import LANE_GAUGES, POOL_GAUGES, QUEUE_GAUGES, REPLICA_GAUGES
from deployments.metrics import GatewayMetrics
from deployments.metrics_board import page_of
from routing.effects import Outcome, OutcomeKind
from routing.geometry import ServiceRates
from routing.lanes import Lane

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
GAUGES = {
    **{f"{name}:short": 1.0 for name in LANE_GAUGES if name.startswith("lane_")},
    **{name: 1.0 for name in LANE_GAUGES if not name.startswith("lane_")},
    **{f"{name}:decode": 1.0 for name in POOL_GAUGES},
    **{f"{name}:standard:decode": 1.0 for name in QUEUE_GAUGES},
}


def exported() -> GatewayMetrics:
    """A gateway that has counted something of everything."""
    metrics = GatewayMetrics(RATES)
    metrics.watch(lambda: {"decode": (REPLICA,)}, lambda: 1, lambda: 0)
    metrics.watch_lanes((Lane(name="short", pools=("decode",), ttft_slo_s=1.0),), lambda: GAUGES)
    metrics.watch_cache(lambda: 0.0)
    metrics.count_answer(ANSWERED)
    return metrics


def exported_page() -> str:
    snapshot = exported().snapshot()
    return page_of({"g": snapshot.own}, snapshot.fleet).decode()


def families() -> Iterator[Metric]:
    """As a reader finds them on the page, but for the times at which counters were made."""
    for family in text_string_to_metric_families(exported_page()):
        if not family.name.endswith("_created"):
            yield family


def series_names() -> set[str]:
    """What a query may name: a histogram's buckets, sum and count among them."""
    names = set()
    for family in families():
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names


def metric_names() -> set[str]:
    """What a list for people names: a histogram by its name alone."""
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families()}

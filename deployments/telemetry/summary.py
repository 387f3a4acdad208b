"""What one gateway counts of a model, in short: the few of its metrics that people watch, small enough to be sent every
second.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

READ = (
    "spillway_requests_total",
    "spillway_requests_open",
    "spillway_time_to_first_token_seconds_bucket",
    "spillway_lane_slo_total",
    "spillway_lane_requests_total",
    "spillway_lane_border_tokens",
    "spillway_lane_recent_bound_seconds",
    "spillway_queue_requests",
    "spillway_queue_work_seconds",
    "spillway_queue_oldest_age_seconds",
    "spillway_shed_fraction",
    "spillway_ejected_replicas",
)
"""Names of the samples that a summary is made of."""
Found = Mapping[str, Sequence[Sample]]
"""Samples by their names."""


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Who of one class waits in one queue.

    Args:
        queue: Its name.
        priority: The class.
        requests: How many wait.
        work_s: Their work, in seconds of one replica.
        oldest_s: How long ago the oldest arrived, in seconds.
    """

    queue: str
    priority: str
    requests: float
    work_s: float
    oldest_s: float


class GatewaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's counts of one model. Those that only grow begin at 0 with the gateway.

    Args:
        requests: Requests answered, by outcome or, where there is one, by ``outcome reason``.
        open: Requests not answered yet.
        ttft: Requests that had their first token within so many seconds, by the histogram's upper bounds.
        slos: Requests that were answered, by lane, SLO and ``true`` or ``false``: whether it was met.
        lane_requests: Requests that were put in each lane.
        border_tokens: Shortest prompt of each lane, where that adapts.
        bounds: Seconds of late, by lane and what binds, as :mod:`deployments.telemetry.what_binds` counts them.
        queues: Who waits.
        shed_fraction: Part of the work that is given up now, 0 to 1.
        ejected: Replicas that are out for a while, by pool.
    """

    requests: Mapping[str, float]
    open: float
    ttft: Mapping[str, float]
    slos: Mapping[str, Mapping[str, Mapping[str, float]]]
    lane_requests: Mapping[str, float]
    border_tokens: Mapping[str, float]
    bounds: Mapping[str, Mapping[str, float]]
    queues: Sequence[QueueSummary]
    shed_fraction: float
    ejected: Mapping[str, float]


SummaryByModel = Mapping[str, GatewaySummary]
"""One gateway's counts, by the model's id."""


def summary_of(metrics: Iterable[Metric]) -> GatewaySummary:
    """The summary of what a gateway counts; whatever else samples are told apart by is added up."""
    found: dict[str, list[Sample]] = {name: [] for name in READ}
    for metric in metrics:
        for sample in metric.samples:
            if sample.name in found:
                found[sample.name].append(sample)
    return GatewaySummary(
        requests={" ".join(filter(None, key)): n for key, n in _sums(found, "requests_total", "outcome", "reason")},
        open=_only(found, "requests_open"),
        ttft=_by(found, "time_to_first_token_seconds_bucket", "le"),
        slos=_slos(found),
        lane_requests=_by(found, "lane_requests_total", "lane"),
        border_tokens=_by(found, "lane_border_tokens", "lane"),
        bounds=_bounds(found),
        queues=_queues(found),
        shed_fraction=_only(found, "shed_fraction"),
        ejected=_by(found, "ejected_replicas", "pool"),
    )


def _sums(found: Found, name: str, *labels: str) -> Iterable[tuple[tuple[str, ...], float]]:
    sums: dict[tuple[str, ...], float] = {}
    for sample in found[f"spillway_{name}"]:
        key = tuple(sample.labels.get(label, "") for label in labels)
        sums[key] = sums.get(key, 0.0) + sample.value
    return sums.items()


def _by(found: Found, name: str, label: str) -> dict[str, float]:
    return {key: value for (key,), value in _sums(found, name, label)}


def _only(found: Found, name: str) -> float:
    return sum(sample.value for sample in found[f"spillway_{name}"])


def _slos(found: Found) -> dict[str, dict[str, dict[str, float]]]:
    slos: dict[str, dict[str, dict[str, float]]] = {}
    for (lane, slo, met), value in _sums(found, "lane_slo_total", "lane", "slo", "met"):
        slos.setdefault(lane, {}).setdefault(slo, {})[met] = value
    return slos


def _bounds(found: Found) -> dict[str, dict[str, float]]:
    bounds: dict[str, dict[str, float]] = {}
    for (lane, bound), value in _sums(found, "lane_recent_bound_seconds", "lane", "bound"):
        bounds.setdefault(lane, {})[bound] = value
    return bounds


def _queues(found: Found) -> list[QueueSummary]:
    work_s, oldest_s = (
        dict(_sums(found, f"queue_{name}", "queue", "class")) for name in ("work_seconds", "oldest_age_seconds")
    )
    return [
        QueueSummary(
            queue=key[0], priority=key[1], requests=value, work_s=work_s.get(key, 0.0), oldest_s=oldest_s.get(key, 0.0)
        )
        for key, value in _sums(found, "queue_requests", "queue", "class")
    ]

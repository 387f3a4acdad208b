"""Metrics that have another name now: for one version more each is on the page under its old name too."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client.core import Metric
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class OldName:
    """What a metric was called.

    Args:
        name: Without ``_total``.
        labels: Old names of its labels, by the names of now.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


OLD_NAMES: Mapping[str, OldName] = MappingProxyType(
    {
        "spillway_lane_slo": OldName(name="spillway_lane_promises", labels={"slo": "promise", "met": "kept"}),
        "spillway_lane_border_tokens": OldName(name="spillway_lane_cutoff_tokens"),
        "spillway_load_coordinator_exchanges": OldName(name="spillway_ledger_exchanges"),
    }
)
"""By the metric's name now, without ``_total``."""


def with_old_names(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """The metrics, and behind each that had another name its copy under that one."""
    for metric in metrics:
        yield metric
        if old := OLD_NAMES.get(metric.name):
            yield _copy(metric, old)


def _copy(metric: Metric, old: OldName) -> Metric:
    now = f"{metric.name}_total" if metric.type == "counter" else metric.name
    copy = Metric(old.name, f"The old name of {now}, gone in the next version.", metric.type, metric.unit)
    copy.samples = [
        Sample(
            old.name + sample.name.removeprefix(metric.name),
            {old.labels.get(label, label): value for label, value in sample.labels.items()},
            *sample[2:],
        )
        for sample in metric.samples
    ]
    return copy

"""Copies what is counted into Ray's own metrics, which its agent on every node exports as ``ray_spillway_...``.

Nothing is copied while a request is served: every so often all samples are, in one go, a histogram's buckets included.
In Ray they are gauges, of which Prometheus takes rates and quantiles as of any other, and counters where their names
end in ``_total``.

Ray keeps a counter, but drops a gauge that it has not been told of for two of its report intervals, 20 s by default. So
gauges that stay what they are have to be told again; that costs 4 us each, and a gateway has two thousand.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from ray.util.metrics import Counter, Gauge

from deployments.telemetry.aggregation import labels_of

Series = tuple[str, ...]
"""A sample's name, its model and the values of its labels; within a metric these are always in the same order."""
Tags = Mapping[str, str]
"""What a sample has beside its labels."""


class RayMirror:
    """Ray's copy of a process's metrics.

    Args:
        num_parts: Calls of ``show`` in which all gauges that have not changed are told again, a part of them each time,
            so that none takes long.
        tags: What each sample has beside its labels: who counts.
    """

    def __init__(self, *, num_parts: int = 1, **tags: str) -> None:
        self._num_parts = num_parts
        self._tags = tags
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._last: dict[Series, tuple[Sample, Tags]] = {}
        self._part = 0

    def show(self, by_model: Mapping[str, Iterable[Metric]]) -> None:
        """Makes Ray's copy what is counted of each model now; gauges that are gone become 0, and Ray drops them."""
        self._part = (self._part + 1) % self._num_parts
        shown: dict[Series, tuple[Sample, Tags]] = {}
        for model, text, sample in _samples(by_model):
            series, tags = (sample.name, model, *sample.labels.values()), {**self._tags, **labels_of(model)}
            shown[series] = sample, tags
            before = self._value_before(series)
            if before != sample.value or self._has_turn(series):
                self._show(text, sample, before or 0.0, {**tags, **sample.labels})
        for series in self._last.keys() - shown.keys():
            gone, its_tags = self._last[series]
            if gone.name in self._gauges:
                self._gauges[gone.name].set(0.0, {**its_tags, **gone.labels})
        self._last = shown

    def _value_before(self, series: Series) -> float | None:
        """What was shown last; ``None``: nothing yet."""
        return self._last[series][0].value if series in self._last else None

    def _has_turn(self, series: Series) -> bool:
        return hash(series) % self._num_parts == self._part

    def _show(self, text: str, sample: Sample, before: float, labels: Mapping[str, str]) -> None:
        name = sample.name
        if name.endswith("_total"):
            if name not in self._counters:
                self._counters[name] = Counter(name, text, tag_keys=tuple(labels))
            if sample.value > before:
                self._counters[name].inc(sample.value - before, labels)
        else:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, text, tag_keys=tuple(labels))
            self._gauges[name].set(sample.value, labels)


def _samples(by_model: Mapping[str, Iterable[Metric]]) -> Iterator[tuple[str, str, Sample]]:
    """Model, text and sample, but for the times at which counters were made."""
    for model, metrics in by_model.items():
        for metric in metrics:
            for sample in metric.samples:
                if not sample.name.endswith("_created"):
                    yield model, metric.documentation, sample

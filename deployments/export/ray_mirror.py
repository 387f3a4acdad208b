"""Copies what is counted into Ray's own metrics, which its agent on every node exports as ``ray_spillway_...``.

Nothing is copied while a request is served: every so often all samples are, in one go, a histogram's buckets included.
In Ray they are gauges, of which Prometheus takes rates and quantiles as of any other, and counters where their names
end in ``_total``.

Ray keeps a counter, but drops a gauge that it has not been told of for two of its report intervals, 20 s by default. So
gauges that stay what they are have to be told again; that costs 4 us each, and a gateway has two thousand.
"""

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from ray.util.metrics import Counter, Gauge

Series = tuple[str, ...]
"""A sample's name and the values of its labels; within a metric these are always in the same order."""


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
        self._last: dict[Series, Sample] = {}
        self._part = 0

    def show(self, metrics: Iterable[Metric]) -> None:
        """Makes Ray's copy what ``metrics`` are now; gauges that are gone become 0, and Ray drops them in time."""
        self._part = (self._part + 1) % self._num_parts
        shown: dict[Series, Sample] = {}
        for metric in metrics:
            for sample in metric.samples:
                if not sample.name.endswith("_created"):
                    series = sample.name, *sample.labels.values()
                    shown[series] = sample
                    before = self._last.get(series)
                    if before is None or before.value != sample.value or self._has_turn(series):
                        self._show(metric.documentation, sample, 0.0 if before is None else before.value)
        for series in self._last.keys() - shown.keys():
            gone = self._last[series]
            if gone.name in self._gauges:
                self._gauges[gone.name].set(0.0, {**self._tags, **gone.labels})
        self._last = shown

    def _has_turn(self, series: Series) -> bool:
        return hash(series) % self._num_parts == self._part

    def _show(self, text: str, sample: Sample, before: float) -> None:
        name, labels = sample.name, {**self._tags, **sample.labels}
        if name.endswith("_total"):
            if name not in self._counters:
                self._counters[name] = Counter(name, text, tag_keys=tuple(labels))
            if sample.value > before:
                self._counters[name].inc(sample.value - before, labels)
        else:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, text, tag_keys=tuple(labels))
            self._gauges[name].set(sample.value, labels)

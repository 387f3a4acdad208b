"""The page of a deployment with several gateways: what each of them counts of each model, whichever of them is asked.

A scrape comes to one gateway, through whatever balances between them. Every gateway tells the aggregator what it counts
every so often, and the one that is asked gets a page with the counts of all, each under its gateway's name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.telemetry.summary import SummaryByModel, summary_of

GATEWAY_LABEL, MODEL_LABEL = "gateway", "model"
NO_MODEL = ""
"""What belongs to none is under this one, and has no such label."""
ByModel = Mapping[str, Sequence[Metric]]
"""What is known of each model, by its id."""
FORGETS_AFTER_S = 10.0
"""A gateway that has said nothing for so long is gone; its counts go with it, as a target's that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one gateway counts, at one time.

    Args:
        own: Its own requests and decisions.
        fleet: What replicas report of themselves: the same from every gateway.
    """

    own: ByModel
    fleet: ByModel


class MetricsAggregator:
    """The last snapshot of every gateway."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, ByModel]] = {}

    def put(self, gateway: str, own: ByModel, now_s: float) -> None:
        """Takes in what a gateway counts."""
        self._known[gateway] = now_s, own

    def page(self, gateway: str, snapshot: Snapshot, now_s: float) -> bytes:
        """The page for a gateway that is asked; it brings its own counts, and they stay known."""
        self.put(gateway, snapshot.own, now_s)
        return page_of(self._all(now_s), snapshot.fleet)

    def summaries(self, gateway: str, own: SummaryByModel, now_s: float) -> dict[str, SummaryByModel]:
        """What all count, in short, for a gateway that is asked; of itself it knows best."""
        return {name: summaries_of(by_model) for name, by_model in self._all(now_s).items()} | {gateway: own}

    def _all(self, now_s: float) -> dict[str, ByModel]:
        """What each gateway counts that is still there."""
        self._known = {name: each for name, each in self._known.items() if now_s - each[0] <= FORGETS_AFTER_S}
        return {name: own for name, (_, own) in sorted(self._known.items())}


def summaries_of(by_model: ByModel) -> SummaryByModel:
    """What a gateway counts of each model, in short."""
    return {model: summary_of(metrics) for model, metrics in by_model.items() if model != NO_MODEL}


def page_of(by_gateway: Mapping[str, ByModel], fleet: ByModel) -> bytes:
    """The text that Prometheus reads."""
    return b"".join(map(text_of, metrics_of(by_gateway, fleet)))


def metrics_of(by_gateway: Mapping[str, ByModel], fleet: ByModel) -> Iterator[Metric]:
    """What stands on the page: each gateway's counts under its name, and what all know of replicas once.

    Each metric is made when it is asked for, so that whoever has other things to do can do them in between.
    """
    yield _gateways(len(by_gateway))
    counted = (
        (labels_of(model) | {GATEWAY_LABEL: gateway}, metrics)
        for gateway, by_model in by_gateway.items()
        for model, metrics in by_model.items()
    )
    yield from _merged(counted)
    yield from _merged((labels_of(model), metrics) for model, metrics in fleet.items())


def labels_of(model: str) -> dict[str, str]:
    """What tells the samples of a model from those of another."""
    return {} if model == NO_MODEL else {MODEL_LABEL: model}


def text_of(metric: Metric) -> bytes:
    """One metric as Prometheus reads it; a page is nothing but one after the other."""
    return generate_latest(_One(metric))


class _One(Collector):
    """A metric that is there already."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _gateways(number: int) -> Metric:
    return GaugeMetricFamily("spillway_gateways", "Gateways whose counts are on this page.", value=number)


def _merged(counted: Iterable[tuple[Mapping[str, str], Sequence[Metric]]]) -> Iterator[Metric]:
    """A metric may stand on a page only once: samples of all gateways and models together under each name."""
    by_name: dict[str, list[tuple[Mapping[str, str], Metric]]] = {}
    for labels, metrics in counted:
        for metric in metrics:
            by_name.setdefault(metric.name, []).append((labels, metric))
    for name, found in by_name.items():
        _, first = found[0]
        merged = Metric(name, first.documentation, first.type, first.unit)
        for labels, metric in found:
            merged.samples += (sample._replace(labels={**sample.labels, **labels}) for sample in metric.samples)
        yield merged

"""The page of several gateways, and a gateway's way to it on a real event loop, with an actor that is the test."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from ray.exceptions import ActorDiedError

from deployments.export.exports import AggregatorClient, MetricsExport, NoAggregator
from deployments.reference.counted import counts
from deployments.telemetry.aggregation import (
    FORGETS_AFTER_S,
    NO_MODEL,
    ByModel,
    MetricsAggregator,
    Snapshot,
    metrics_of,
    page_of,
    summaries_of,
)
from deployments.telemetry.summary import SummaryByModel
from tests.tables import for_each
from tests.waiting import until


def answered(number: float, name: str = "answers") -> Metric:
    metric = CounterMetricFamily(f"spillway_{name}_total", "Answers.", labels=["outcome"])
    metric.add_metric(["completed"], number)
    return metric


def requests(number: float) -> Metric:
    return answered(number, "requests")


def replicas(number: float) -> Metric:
    return GaugeMetricFamily("spillway_replicas", "Replicas.", value=number)


def of_llama(*metrics: Metric) -> ByModel:
    """What is counted of one model."""
    return {"llama": metrics}


def snapshot(number: float) -> Snapshot:
    return Snapshot(own=of_llama(answered(number)), fleet=of_llama(replicas(4)))


def values(page: bytes, name: str) -> dict[str, float]:
    """A metric's value by gateway."""
    families = text_string_to_metric_families(page.decode())
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels.get("gateway", ""): sample.value for sample in found}


class Mirror:
    """In the place of Ray's copy."""

    def __init__(self) -> None:
        self.num_shown = 0

    def show(self, metrics: Any) -> None:
        self.num_shown += 1


class Actor:
    """The aggregator, without Ray; it answers until it is killed."""

    def __init__(self) -> None:
        self._aggregator = MetricsAggregator()
        self.is_dead = False
        self.num_put = 0
        self.put = _Method(self, self._put)
        self.page = _Method(self, self._page)
        self.summaries = _Method(self, self._summaries)

    def _put(self, gateway: str, own: Any) -> None:
        self.num_put += 1
        self._aggregator.put(gateway, own, 0.0)

    def _page(self, gateway: str, snapshot: Snapshot) -> bytes:
        return self._aggregator.page(gateway, snapshot, 0.0)

    def _summaries(self, gateway: str, own: SummaryByModel) -> dict[str, SummaryByModel]:
        return self._aggregator.summaries(gateway, own, 0.0)


class _Method:
    def __init__(self, actor: Actor, call: Callable[..., Any]) -> None:
        self._actor = actor
        self._call = call

    def remote(self, *arguments: Any) -> Any:
        return self._answer(*arguments)

    async def _answer(self, *arguments: Any) -> Any:
        if self._actor.is_dead:
            raise ActorDiedError
        return self._call(*arguments)


def test_the_page_has_every_gateways_counts_under_its_name() -> None:
    aggregator = MetricsAggregator()
    aggregator.put("b", of_llama(answered(5.0)), 0.0)
    page = aggregator.page("a", snapshot(2.0), 1.0)
    assert values(page, "spillway_answers_total") == {"a": 2.0, "b": 5.0}
    assert values(page, "spillway_gateways") == {"": 2.0}
    assert page.count(b"# TYPE spillway_answers_total counter") == 1, "a name stands on a page once"


def test_what_all_know_of_replicas_is_on_the_page_once() -> None:
    aggregator = MetricsAggregator()
    aggregator.page("b", snapshot(1.0), 0.0)
    assert values(aggregator.page("a", snapshot(1.0), 0.0), "spillway_replicas") == {"": 4.0}


def test_a_gateway_that_says_nothing_any_more_leaves_the_page() -> None:
    aggregator = MetricsAggregator()
    aggregator.put("gone", of_llama(answered(5.0)), 0.0)
    assert set(values(aggregator.page("a", snapshot(2.0), FORGETS_AFTER_S), "spillway_answers_total")) == {"a", "gone"}
    assert set(values(aggregator.page("a", snapshot(2.0), FORGETS_AFTER_S + 0.1), "spillway_answers_total")) == {"a"}


def test_summaries_are_those_of_all_who_still_say_something_and_each_knows_its_own_best() -> None:
    aggregator = MetricsAggregator()
    aggregator.put("gone", of_llama(requests(9.0)), 0.0)
    aggregator.put("a", of_llama(requests(1.0)), 5.0)
    aggregator.put("b", of_llama(requests(5.0)), 5.0)
    found = aggregator.summaries("a", summaries_of(of_llama(requests(2.0))), FORGETS_AFTER_S + 1)
    assert {name: each["llama"].requests for name, each in found.items()} == {
        "a": {"completed": 2.0},
        "b": {"completed": 5.0},
    }


def test_a_gateways_own_counts_are_not_changed_by_the_page() -> None:
    own = counts().snapshot()
    page_of({"a": own.own, "b": own.own}, own.fleet)
    found = [sample for metrics in own.own.values() for metric in metrics for sample in metric.samples]
    assert all(sample.labels.keys().isdisjoint({"gateway", "model"}) for sample in found)


def test_a_page_tells_models_apart_and_says_of_errors_only_which_gateway() -> None:
    errors = answered(3.0, "http_errors")
    own = {"llama": (answered(1.0),), "qwen": (answered(1.0),), NO_MODEL: (errors,)}
    page = page_of({"a": own}, {"llama": (replicas(4),), "qwen": (replicas(4),)}).decode()

    assert 'spillway_answers_total{gateway="a",model="llama",outcome="completed"} 1.0' in page
    assert 'spillway_answers_total{gateway="a",model="qwen",outcome="completed"} 1.0' in page
    assert 'spillway_http_errors_total{gateway="a",outcome="completed"} 3.0' in page
    assert 'spillway_replicas{model="qwen"} 4.0' in page
    assert page.count("# TYPE spillway_replicas gauge") == 1


class AllAtOnce(Collector):
    """Metrics that prometheus-client writes on one page."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def rendered_at_once(by_gateway: dict[str, Any], fleet: Any) -> bytes:
    registry = CollectorRegistry()
    registry.register(AllAtOnce(list(metrics_of(by_gateway, fleet))))
    return generate_latest(registry)


async def test_a_page_in_parts_is_the_one_that_prometheus_client_writes() -> None:
    known = counts().snapshot()
    both = {"a": known.own, "b": known.own}
    assert page_of(both, known.fleet) == rendered_at_once(both, known.fleet)
    assert await NoAggregator("a").page(known) == rendered_at_once({"a": known.own}, known.fleet)


async def test_others_have_their_turn_after_each_metric_of_a_page() -> None:
    known = counts().snapshot()
    page = asyncio.ensure_future(NoAggregator("a").page(known))
    num_turns = 0
    while not page.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > len(list(metrics_of({"a": known.own}, known.fleet)))


async def test_a_gateway_by_itself_needs_no_aggregator() -> None:
    page = await NoAggregator("a").page(snapshot(3.0))
    assert values(page, "spillway_answers_total") == {"a": 3.0}


async def test_each_gateway_is_on_the_page_of_the_other() -> None:
    actor = Actor()
    a, b = (AggregatorClient(name, find=lambda: actor) for name in "ab")
    await b.put(of_llama(answered(7.0)))
    assert values(await a.page(snapshot(1.0)), "spillway_answers_total") == {"a": 1.0, "b": 7.0}


async def test_each_gateway_has_the_summary_of_the_other_and_its_own_without_the_aggregator() -> None:
    actor = Actor()
    a, b = (AggregatorClient(name, find=lambda: actor) for name in "ab")
    await b.put(of_llama(answered(7.0)))
    own = summaries_of(of_llama(requests(1.0)))
    assert set(await a.summaries(own)) == {"a", "b"}
    actor.is_dead = True
    assert await a.summaries(own) == {"a": own} == await NoAggregator("a").summaries(own)


@for_each("error", [ActorDiedError(), ValueError("no actor of that name")])
async def test_without_the_aggregator_a_gateway_still_shows_its_own_counts(error: Exception) -> None:
    def find() -> Any:
        raise error

    client = AggregatorClient("a", find=find)
    await client.put(of_llama(answered(1.0)))
    page = await client.page(snapshot(1.0))
    assert values(page, "spillway_answers_total") == {"a": 1.0}
    assert values(page, "spillway_gateways") == {"": 1.0}, "which says that others are missing"


async def test_an_aggregator_that_was_started_anew_is_found() -> None:
    actors = [Actor(), Actor()]
    first = actors[0]
    client = AggregatorClient("a", find=lambda: actors.pop(0))
    await client.put(of_llama(answered(1.0)))
    first.is_dead = True
    await client.put(of_llama(answered(2.0)))
    second = actors[0]
    await client.put(of_llama(answered(3.0)))
    assert (first.num_put, second.num_put) == (1, 1)


async def test_counts_are_copied_until_the_export_is_closed() -> None:
    actor, mirror = Actor(), Mirror()
    aggregator = AggregatorClient("a", find=lambda: actor)
    export = MetricsExport(counts(), aggregator, mirror, period_s=0.001)
    await until(lambda: actor.num_put >= 2 and mirror.num_shown >= 2, "two copies")
    export.close()
    await asyncio.sleep(0)
    assert values(await export.page(), "spillway_requests_open") == {"a": 1.0}


async def test_a_copy_that_goes_wrong_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Mirror):
        def show(self, metrics: Any) -> None:
            super().show(metrics)
            if self.num_shown == 1:
                raise RuntimeError("once")

    actor, mirror = Actor(), Broken()
    export = MetricsExport(counts(), AggregatorClient("a", find=lambda: actor), mirror, period_s=0.001)
    await until(lambda: actor.num_put >= 1, "the second copy")
    export.close()
    assert "metrics could not be copied" in caplog.text

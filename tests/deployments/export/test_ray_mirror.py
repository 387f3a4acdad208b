"""Ray's copy of what is counted, with Ray's metrics replaced by ones that remember."""

from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.export import ray_mirror
from deployments.export.ray_mirror import RayMirror
from deployments.telemetry.aggregation import NO_MODEL

Calls = list[tuple[str, float, dict[str, str]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made: Calls = []

    class Remembering:
        def __init__(self, name: str, text: str, tag_keys: tuple[str, ...]) -> None:
            self._name, self._tag_keys = name, tag_keys

        def set(self, value: float, tags: dict[str, Any]) -> None:
            assert set(tags) == set(self._tag_keys)
            made.append((self._name, value, tags))

        def inc(self, value: float, tags: dict[str, Any]) -> None:
            self.set(value, tags)

    monkeypatch.setattr(ray_mirror, "Gauge", Remembering)
    monkeypatch.setattr(ray_mirror, "Counter", Remembering)
    return made


def gauge(**by_line: float) -> Metric:
    metric = GaugeMetricFamily("queue", "Who waits.", labels=["line"])
    for line, value in by_line.items():
        metric.add_metric([line], value)
    return metric


def counter(value: float) -> Metric:
    metric = CounterMetricFamily("answers_total", "Answers.", labels=["outcome"])
    metric.add_metric(["completed"], value)
    return metric


def test_counters_grow_by_what_is_new_and_gauges_are_set(calls: Calls) -> None:
    mirror = RayMirror(gateway="g")
    mirror.show({NO_MODEL: [counter(2.0), gauge(a=1.0)]})
    mirror.show({NO_MODEL: [counter(5.0), gauge(a=4.0)]})
    of_completed, of_a = {"gateway": "g", "outcome": "completed"}, {"gateway": "g", "line": "a"}
    assert calls == [
        ("answers_total", 2.0, of_completed),
        ("queue", 1.0, of_a),
        ("answers_total", 3.0, of_completed),
        ("queue", 4.0, of_a),
    ]


def test_models_are_told_apart(calls: Calls) -> None:
    mirror = RayMirror(gateway="g")
    mirror.show({"llama": [counter(2.0)], "qwen": [counter(3.0)]})
    mirror.show({"llama": [counter(2.0)], "qwen": [counter(7.0)]})
    of_llama, of_qwen = ({"gateway": "g", "model": name, "outcome": "completed"} for name in ("llama", "qwen"))
    assert calls == [
        ("answers_total", 2.0, of_llama),
        ("answers_total", 3.0, of_qwen),
        ("answers_total", 4.0, of_qwen),
    ]


def test_a_counter_that_has_not_grown_is_not_told_again(calls: Calls) -> None:
    mirror = RayMirror()
    for _ in range(3):
        mirror.show({NO_MODEL: [counter(2.0)]})
    assert len(calls) == 1


def test_gauges_that_have_not_changed_are_told_again_or_ray_drops_them(calls: Calls) -> None:
    mirror = RayMirror()
    for _ in range(3):
        mirror.show({NO_MODEL: [gauge(a=1.0)]})
    assert calls == [("queue", 1.0, {"line": "a"})] * 3


def test_they_are_told_again_in_parts_each_of_them_once_in_so_many_copies(calls: Calls) -> None:
    many = {f"line-{number}": 1.0 for number in range(400)}
    mirror = RayMirror(num_parts=4)
    mirror.show({NO_MODEL: [gauge(**many)]})
    calls.clear()
    told = []
    for _ in range(4):
        before = len(calls)
        mirror.show({NO_MODEL: [gauge(**many)]})
        told.append(len(calls) - before)
    assert {tags["line"] for _, _, tags in calls} == set(many)
    assert sum(told) == 400
    assert max(told) < 200, "one of four parts each time"


def test_a_gauge_that_is_gone_becomes_0(calls: Calls) -> None:
    mirror = RayMirror()
    mirror.show({NO_MODEL: [gauge(a=1.0, b=2.0)]})
    mirror.show({NO_MODEL: [gauge(a=1.0)]})
    assert calls[-1] == ("queue", 0.0, {"line": "b"})


def test_a_counter_that_is_gone_stays_what_it_was(calls: Calls) -> None:
    mirror = RayMirror()
    mirror.show({NO_MODEL: [counter(2.0)]})
    mirror.show({NO_MODEL: []})
    assert calls == [("answers_total", 2.0, {"outcome": "completed"})]

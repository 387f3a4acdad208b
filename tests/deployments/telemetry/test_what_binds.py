"""What the requests of each lane spent their time on, by what binds."""

import pytest
from prometheus_client import CollectorRegistry

from cluster.bound_seconds import BOUND_OF, UNKNOWN_ALONE, AloneTimes
from cluster.latency_budget import LatencyStage, Span, Timeline
from deployments.telemetry.what_binds import MEMORY_S, LaneBounds
from policies.capacity.bounds import Bound

ALONE = AloneTimes(prefill_s=0.2, decode_s=1.0)


class Counting:
    """Bounds of lanes, on a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now_s = 0.0
        self.bounds = LaneBounds(self.registry, lambda: self.now_s)

    def observe(self, alone: AloneTimes = ALONE, lane: str = "short", **stages_s: float) -> None:
        self.bounds.observe(lane, line_of(**stages_s), alone)

    def seconds(self, lane: str = "short") -> dict[str, float]:
        return self._by_bound("spillway_request_bound_seconds_total", lane)

    def binding(self, lane: str = "short") -> list[str]:
        return list(self._by_bound("spillway_lane_bound", lane))

    def recent(self, lane: str = "short") -> dict[str, float]:
        return self._by_bound("spillway_lane_recent_bound_seconds", lane)

    def _by_bound(self, name: str, lane: str) -> dict[str, float]:
        found = {
            each.value: self.registry.get_sample_value(name, {"lane": lane, "bound": each.value}) for each in Bound
        }
        return {bound: value for bound, value in found.items() if value}


def line_of(**stages_s: float) -> Timeline:
    spans, at_s = [], 0.0
    for stage, each_s in stages_s.items():
        spans.append(Span(LatencyStage(stage), at_s, at_s + each_s))
        at_s += each_s
    return spans


def test_what_an_idle_fleet_takes_too_is_the_engine_and_what_is_beyond_is_lost() -> None:
    counting = Counting()
    counting.observe(queue=0.5, prefill=0.3, decode=1.6)
    assert counting.seconds() == pytest.approx({"engine": 1.2, "queue": 0.5, "prefill": 0.1, "memory": 0.6})
    assert counting.binding() == ["memory"]


def test_a_request_as_fast_as_on_an_idle_fleet_is_bound_by_the_engine_alone() -> None:
    counting = Counting()
    counting.observe(dispatch=0.01, prefill=0.2, decode=1.0)
    assert counting.binding() == ["engine"]


def test_an_answer_that_was_broken_off_took_the_engine_no_more_than_it_did() -> None:
    counting = Counting()
    counting.observe(prefill=0.1)
    assert counting.seconds() == pytest.approx({"engine": 0.1})


def test_the_first_token_after_a_transfer_is_a_decode_step_and_otherwise_its_way_here() -> None:
    counting = Counting()
    counting.observe(AloneTimes(), "handed", prefill=0.1, kv_transfer=0.2, first_token=0.3)
    counting.observe(AloneTimes(), "whole", prefill=0.1, first_token=0.3)
    assert counting.seconds("handed") == pytest.approx({"prefill": 0.1, "transfer": 0.2, "memory": 0.3})
    assert counting.seconds("whole") == pytest.approx({"prefill": 0.1, "front_end": 0.3})


def test_without_a_profile_what_engines_took_is_theirs() -> None:
    counting = Counting()
    counting.observe(UNKNOWN_ALONE, queue=0.1, prefill=5.0, decode=5.0)
    assert counting.seconds() == pytest.approx({"engine": 10.0, "queue": 0.1})
    assert counting.binding() == ["engine"]


def test_what_was_lost_long_ago_binds_no_more() -> None:
    counting = Counting()
    counting.observe(queue=10.0, prefill=0.2, decode=1.0)
    assert counting.binding() == ["queue"]
    counting.now_s = 3 * MEMORY_S
    counting.observe(prefill=0.2, decode=1.0, egress=2.0)
    assert counting.binding() == ["client"]
    assert counting.recent()["queue"] == pytest.approx(10.0 * 0.0498, rel=1e-2)
    assert counting.seconds()["queue"] == pytest.approx(10.0)


def test_every_stage_has_a_bound_and_every_bound_but_the_engine_a_stage() -> None:
    assert set(BOUND_OF) == set(LatencyStage)
    assert set(BOUND_OF.values()) == set(Bound) - {Bound.ENGINE}

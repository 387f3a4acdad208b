"""What binds the requests of each lane, by where their time went and what they would take on an idle fleet.

A request counts when its answer has left, or when it is refused: what still waits is in ``queue_oldest_age_seconds``.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.bound_seconds import AloneTimes, bound_seconds
from cluster.latency_budget import Timeline
from policies.capacity.bounds import Bound, added_up, what_binds

MEMORY_S = 60.0
"""In which what was lost fades to 1/e."""


class LaneBounds(Collector):
    """What the requests of each lane spent their time on, since the start and of late, and what binds them of late.

    Args:
        registry: Where the metrics are to be found.
        now_s: The gateway's clock.
    """

    def __init__(self, registry: CollectorRegistry, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lanes: dict[str, _Lane] = {}
        registry.register(self)

    def observe(self, lane: str, timeline: Timeline, alone: AloneTimes) -> None:
        """One request is over.

        Args:
            lane: Its lane; empty where there are none.
            timeline: Where its time went.
            alone: What its prompt and its answer take on replicas that do nothing else.
        """
        self._lanes.setdefault(lane, _Lane()).add(bound_seconds(timeline, alone), self._now_s())

    def of_late_s(self) -> dict[Bound, float]:
        """What all requests spent their time on of late."""
        return added_up(lane.recent_at(self._now_s()) for lane in self._lanes.values())

    def collect(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "spillway_request_bound_seconds_total",
            "Seconds of requests that are over. engine: what they take on an idle fleet, by the engine profile, or all "
            "that engines took without one; the others: what they took beyond it, by where it was lost.",
            labels=["lane", "bound"],
        )
        recent = GaugeMetricFamily(
            "spillway_lane_recent_bound_seconds",
            f"The same of late: what a request spent counts 1/e after {MEMORY_S:.0f} s.",
            labels=["lane", "bound"],
        )
        binds = GaugeMetricFamily(
            "spillway_lane_bound",
            "1 for what binds the lane's requests of late, 0 for the others; engine: they lose little time.",
            labels=["lane", "bound"],
        )
        for name, lane in self._lanes.items():
            of_late_s = lane.recent_at(self._now_s())
            verdict = what_binds(of_late_s)
            for bound in Bound:
                labels = [name, bound.value]
                total.add_metric(labels, lane.spent_s[bound])
                recent.add_metric(labels, of_late_s[bound])
                binds.add_metric(labels, float(bound is verdict.bound))
        yield from (total, recent, binds)


class _Lane:
    """Seconds of one lane's requests, since the start and of late."""

    def __init__(self) -> None:
        self.spent_s = dict.fromkeys(Bound, 0.0)
        self._recent_s = dict.fromkeys(Bound, 0.0)
        self._at_s = 0.0

    def add(self, spent_s: Mapping[Bound, float], now_s: float) -> None:
        self._recent_s, self._at_s = self.recent_at(now_s), now_s
        for bound, each_s in spent_s.items():
            self.spent_s[bound] += each_s
            self._recent_s[bound] += each_s

    def recent_at(self, now_s: float) -> dict[Bound, float]:
        fading = math.exp((self._at_s - now_s) / MEMORY_S)
        return {bound: fading * each_s for bound, each_s in self._recent_s.items()}

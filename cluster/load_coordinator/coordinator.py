"""The load coordinator: adds up what all gateways are offered, and says who is shed, the same to all of them.

No request waits for it. It keeps nothing that can't be lost: each answer carries what it has learned, gateways bring
the last answer back with each report, and one that starts anew goes on from there.
"""

import math
from collections import deque
from dataclasses import replace

from cluster.load_coordinator.capacity import FleetCapacity
from cluster.load_coordinator.demand import FleetDemand
from cluster.load_coordinator.news import NewsRelay
from policies.load_reports import (
    NO_THRESHOLDS,
    UNKNOWN_FLEET,
    AdmissionThresholds,
    ControlLaw,
    FleetEstimate,
    LoadReport,
)
from policies.shedding.fraction_law import fraction_of, integral_after
from policies.shedding.thresholds import thresholds_for

PERIODS_VALID = 3
"""An answer holds as long as this many reports take; a gateway that has not reported for so long is gone."""
SILENT_S = 5.0
"""Time for gateways to find a later load coordinator; who is still asked after that is the only one there is."""
MOST_PASSES = 16_384
"""Kept for a gateway until it asks."""


class LoadCoordinator:
    """Answers reports.

    Gateways go by the latest answer that they know, so this one has to outbid what those before it have said: it begins
    one epoch above the first gateway that reports, and again when another one knows better at once. When one knows
    better later there is perhaps another load coordinator, and this one falls silent for a while.

    Attributes:
        news: Passes on between the same gateways what is new with them.
    """

    def __init__(self) -> None:
        self.news = NewsRelay()
        self._epoch = 0
        self._version = 0
        self._began_s = self._silent_until_s = -math.inf
        self._estimate = UNKNOWN_FLEET
        self._salt = 0
        self._salted_s = -math.inf
        self._reported_s: dict[str, float] = {}
        self._wait_ratios: dict[str, float] = {}
        self._session_passes: dict[str, deque[int]] = {}
        self._demand = FleetDemand(UNKNOWN_FLEET, 0.0)
        self._capacity = FleetCapacity()
        self._at_s = -math.inf

    def exchange(self, gateway: str, report: LoadReport, now_s: float) -> AdmissionThresholds:
        """Takes one gateway's report in.

        Args:
            gateway: Names it; unique among those that share the load coordinator.
            report: What it has seen since its last one.
            now_s: Now, on the load coordinator's clock.

        Returns:
            What the gateway is to go by; :data:`policies.load_reports.NO_THRESHOLDS`, which is older than anything,
            while there is perhaps a later load coordinator.
        """
        law = report.law
        if self._epoch and report.known.age > (self._epoch, self._version):
            self._epoch = 0
            if now_s - self._began_s > PERIODS_VALID * law.period_s:
                self._silent_until_s = now_s + SILENT_S
        if now_s < self._silent_until_s:
            return NO_THRESHOLDS
        if not self._epoch:
            self._begin(report, now_s)
        self._add(gateway, report, now_s)
        self._forget_those_gone(law, now_s)
        self._relay(gateway, report.session_passes)
        self._step(law, now_s)
        if now_s - self._salted_s >= law.salt_period_s:
            self._salt, self._salted_s = self._salt + 1, now_s
        self._version += 1
        outbox = self._session_passes[gateway]
        session_passes = tuple(outbox)
        outbox.clear()
        return AdmissionThresholds(
            epoch=self._epoch,
            version=self._version,
            valid_for_s=PERIODS_VALID * law.period_s,
            salt=self._salt,
            by_class=thresholds_for(fraction_of(self._estimate, law), self._estimate.demand_per_s),
            estimate=self._estimate,
            session_passes=session_passes,
        )

    def _begin(self, report: LoadReport, now_s: float) -> None:
        """Goes on where the load coordinator before it ended, as far as the first gateway to report knows."""
        known = report.known
        self._began_s = now_s
        self._epoch = known.epoch + 1
        self._salt, self._salted_s = known.salt, now_s
        self._estimate = known.estimate
        self._demand = FleetDemand(known.estimate, now_s)
        self._capacity = FleetCapacity(known.estimate.capacity_per_s)

    def _add(self, gateway: str, report: LoadReport, now_s: float) -> None:
        self._reported_s[gateway] = now_s
        self._wait_ratios[gateway] = report.wait_ratio
        self._session_passes.setdefault(gateway, deque(maxlen=MOST_PASSES))
        self._demand.add(report, now_s)
        self._capacity.add(report, len(self._reported_s))

    def _forget_those_gone(self, law: ControlLaw, now_s: float) -> None:
        gone = [name for name, at_s in self._reported_s.items() if now_s - at_s > PERIODS_VALID * law.period_s]
        for name in gone:
            del self._reported_s[name], self._wait_ratios[name], self._session_passes[name]

    def _relay(self, gateway: str, session_passes: tuple[int, ...]) -> None:
        for other, outbox in self._session_passes.items():
            if other != gateway:
                outbox.extend(session_passes)

    def _step(self, law: ControlLaw, now_s: float) -> None:
        estimate = FleetEstimate(
            demand_per_s=self._demand.per_s(),
            first_per_s=self._demand.first_per_s(),
            work_per_session=self._demand.work_per_session(),
            capacity_per_s=self._capacity.per_s,
            integral=self._estimate.integral,
            wait_ratio=sum(self._wait_ratios.values()) / len(self._wait_ratios),
        )
        passed_s = min(now_s - self._at_s, law.period_s)
        self._at_s = now_s
        self._estimate = replace(estimate, integral=integral_after(estimate, law, passed_s))

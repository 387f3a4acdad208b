"""How much would come to a fleet if nobody were given up, from what its gateways let in."""

import math

from policies.estimators import FadingRate
from policies.load_reports import NUM_CLASSES, FleetEstimate, LoadReport, PerClass

SESSION_MEMORY_S = 30.0
SAMPLES = 150
"""Requests that the rate of the moment is taken over: fewer say little, and more say what was and not what is."""
SHORTEST_MEMORY_S, LONGEST_MEMORY_S = 1.0, 8.0


class FleetDemand:
    """Service-seconds a second of each class, sessions in full.

    What begins now is the demand that can still be turned away; sessions that have begun will go on. So each first
    request counts for its whole session, by how much sessions bring on top of their first requests.

    Args:
        known: What somebody else has found out.
        now_s: Now.
    """

    def __init__(self, known: FleetEstimate, now_s: float) -> None:
        self._at_s = now_s
        self._begun_per_s = [
            per_s / factor for per_s, factor in zip(known.demand_per_s, known.work_per_session, strict=True)
        ]
        self._let_in_per_s = list(known.first_per_s)
        self._num_first = FadingRate(LONGEST_MEMORY_S)
        self._later = [FadingRate(SESSION_MEMORY_S) for _ in range(NUM_CLASSES)]
        for later, factor in zip(self._later, known.work_per_session, strict=True):
            later.add((factor - 1.0) * SESSION_MEMORY_S, now_s)

    def add(self, report: LoadReport, now_s: float) -> None:
        """Takes in what one gateway was asked."""
        self._num_first.add(report.num_first, now_s)
        per_s = self._num_first.per_s_at(now_s)
        memory_s = min(LONGEST_MEMORY_S, max(SHORTEST_MEMORY_S, SAMPLES / per_s if per_s else LONGEST_MEMORY_S))
        passed_s = max(1e-6, now_s - self._at_s)
        self._at_s = now_s
        share = -math.expm1(-passed_s / memory_s)
        for rank in range(NUM_CLASSES):
            self._begun_per_s[rank] += share * (report.demand_s[rank] / passed_s - self._begun_per_s[rank])
            self._let_in_per_s[rank] += share * (report.first_s[rank] / passed_s - self._let_in_per_s[rank])
            self._later[rank].add(report.later_s[rank], now_s)

    def per_s(self) -> PerClass:
        """What would come."""
        return tuple(a * b for a, b in zip(self._begun_per_s, self.work_per_session(), strict=True))

    def first_per_s(self) -> PerClass:
        """Work of those that are let in and are not sessions' later requests."""
        return tuple(self._let_in_per_s)

    def work_per_session(self) -> PerClass:
        """Work of whole sessions over that of their first requests; 1 where there are none."""
        return tuple(1.0 + later.per_s_at(self._at_s) for later in self._later)

"""How much a fleet does, from what its gateways send while requests wait."""

import math

from policies.load_reports import LoadReport

MEMORY_S = 10.0
"""Of time in which requests waited, after which what was seen counts for little."""
SATURATED_FRACTION = 0.8
"""Of those who came found others waiting or were refused: there was no room, and what was sent is what can be done."""


class FleetCapacity:
    """Service-seconds a second. Until it has been seen, one for each replica.

    Args:
        known_per_s: What somebody else has found out; 0: nothing.
    """

    def __init__(self, known_per_s: float = 0.0) -> None:
        self._work_s = known_per_s * MEMORY_S
        self._busy_s = MEMORY_S if known_per_s else 0.0
        self._unknown_s = 0.0 if known_per_s else 1.0
        self._num_replicas = 0

    def add(self, report: LoadReport, num_gateways: int) -> None:
        """Takes in what one of so many gateways has sent."""
        self._num_replicas = report.num_replicas or self._num_replicas
        if report.saturated_fraction < SATURATED_FRACTION:
            return
        passed_s = report.interval_s / num_gateways
        fading = math.exp(-passed_s / MEMORY_S)
        self._work_s = self._work_s * fading + report.started_s
        self._busy_s = self._busy_s * fading + passed_s
        self._unknown_s *= fading

    @property
    def per_s(self) -> float:
        """What the fleet does."""
        weight_s = self._busy_s + self._unknown_s
        return (self._work_s + self._unknown_s * self._num_replicas) / weight_s

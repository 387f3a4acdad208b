"""Is the fleet idle enough for work that is done twice?"""

from policies.attempt_views import AttemptView
from policies.estimators import FadingMean
from policies.params import HEDGING
from policies.views import FleetView

MEMORY_S = 5.0
LOOK_EVERY_S = 0.1
"""A look costs as many steps as there are replicas."""


class LoadGate:
    """Open while few replicas have prompts to compute.

    Those who come find so many replicas busy as are busy on average, so what attempts find when they are sent is the
    utilisation, without anybody's having to know how fast engines are.

    Args:
        max_busy_fraction: Of the replicas; 1: always open.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, max_busy_fraction: float) -> None:
        HEDGING.check_number("max_busy_fraction", max_busy_fraction, 0, 1)
        self._max_busy_fraction = max_busy_fraction
        self._busy_fraction = FadingMean(MEMORY_S)
        self._looked_at_s = -LOOK_EVERY_S

    def look(self, attempt: AttemptView, fleet: FleetView, now_s: float) -> None:
        """An attempt has just been sent: who was busy before it came?"""
        if self._max_busy_fraction == 1 or now_s - self._looked_at_s < LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        replicas = fleet.live(attempt.stage, now_s)
        if replicas:
            num_busy = sum(each.prefill_tokens > 0 for each in replicas)
            was_idle = attempt.replica.prefill_tokens <= attempt.prefill_tokens
            self._busy_fraction.add(max(0, num_busy - was_idle) / len(replicas), now_s)

    def is_open(self, now_s: float) -> bool:
        """Whether there is room for extra work."""
        return self._max_busy_fraction == 1 or self._busy_fraction.at(now_s) <= self._max_busy_fraction

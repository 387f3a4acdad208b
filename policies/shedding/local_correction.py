"""What a gateway gives up that has only itself to go by: what was last agreed on, put right by its own waits."""

import math

from policies.estimators import FadingMean, FadingRate
from policies.load_reports import NUM_CLASSES, PerClass
from policies.shedding.thresholds import thresholds_for

MEMORY_S = 1.0
QUIET_RATIO = 0.1
"""Of the target: who waits less waits for nothing."""
FORGETS_IN_S = 10.0
"""Of quiet, to 1/e."""


class LocalCorrection:
    """A fraction in proportion to the wait, around one that is given.

    There is no sum over time in it, and that is why gateways stay together: whoever has more requests under way hears
    of more room, so a gateway that gives a little less up gets a little more of the fleet, waits less, and each would
    drift its own way for as long as nobody tells it where the others are.

    Args:
        target_s: How long requests may wait.
        gain: Fraction for each ``target_s`` that they wait longer.
    """

    def __init__(self, target_s: float, gain: float) -> None:
        self._target_s = target_s
        self._gain = gain
        self._around = 0.0
        self._at_s = 0.0
        self._wait_ratio = FadingMean(MEMORY_S)
        self._offered = [FadingRate(MEMORY_S) for _ in range(NUM_CLASSES)]
        self.fraction = 0.0
        self.thresholds: PerClass = thresholds_for(0.0, [0.0] * NUM_CLASSES)

    def begin(self, fraction: float, now_s: float) -> None:
        """From now on it has only itself to go by; this was last agreed on."""
        self._around, self._at_s = fraction, now_s

    def note(self, rank: int, work: float, wait_s: float, now_s: float) -> None:
        """Somebody has come, and would have to wait so long."""
        self._offered[rank].add(work, now_s)
        self._wait_ratio.add(wait_s / self._target_s, now_s)
        wait_ratio = self._wait_ratio.at(now_s)
        if wait_ratio < QUIET_RATIO:
            self._around *= math.exp((self._at_s - now_s) / FORGETS_IN_S)
        self._at_s = now_s
        self.fraction = min(1.0, max(0.0, self._around + self._gain * (wait_ratio - 1.0)))
        self.thresholds = thresholds_for(self.fraction, [each.per_s_at(now_s) for each in self._offered])

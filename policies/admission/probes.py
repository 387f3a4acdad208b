"""When one is let in that would be refused: a policy that refuses everybody never learns that there is no reason to."""

import math

PROBE_AFTER_S = 10.0


class Probes:
    """One after so many that are let in, and one after ten seconds in any case, of all gateways together.

    The first ten seconds begin with the first request, whatever the clock shows then.

    Args:
        fraction: Of those that are let in, at the most; 0: none.
        num_gateways: Each lets in its share.
    """

    def __init__(self, fraction: float, num_gateways: int = 1) -> None:
        self._fraction = fraction
        self._probe_after_s = PROBE_AFTER_S * num_gateways
        self._num_since = 0
        self._probed_s = math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether the next one that would be refused is let in."""
        self._probed_s = min(self._probed_s, now_s)
        is_due = self._num_since * self._fraction >= 1.0 or now_s - self._probed_s >= self._probe_after_s
        return is_due and self._fraction > 0.0

    def let_in(self, now_s: float, *, is_probe: bool) -> None:
        """A request has been let in."""
        self._num_since = 0 if is_probe else self._num_since + 1
        self._probed_s = now_s if is_probe else min(self._probed_s, now_s)

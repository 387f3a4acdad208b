"""How long attempts wait for their first token, in proportion to what each was expected to, by lane."""

from policies.attempt_views import AttemptView
from policies.estimators import RecentQuantile
from policies.params import HEDGING
from policies.signals import AttemptSignal, Completed, FirstToken, Superseded


class Waits:
    """A high quantile for each lane, learned from attempts that have ended.

    One that was beaten by its rival counts for what it had waited until then: without those, the more a sick replica's
    requests are hedged the better it seems.

    Args:
        quantile: Which.
        window_s: How long a sample counts.
        min_samples: With fewer the quantile is not known.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, quantile: float, window_s: float, min_samples: int) -> None:
        HEDGING.check_number("quantile", quantile, 0.01, 0.999)
        HEDGING.check_positive("window_s", window_s)
        HEDGING.check_number("min_samples", min_samples, 1)
        self._quantile = quantile
        self._window_s = window_s
        self._min_samples = min_samples
        self._lanes: dict[str, RecentQuantile] = {}
        self._open: dict[str, tuple[RecentQuantile, float, float]] = {}

    def begin(self, lane: str, attempt: AttemptView, expected: float, now_s: float) -> float:
        """An attempt was sent, whose wait is to be taken in proportion to ``expected``.

        Returns:
            What its lane's waits are in proportion to theirs; ``math.inf`` while that is not known.
        """
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = RecentQuantile(self._quantile, self._window_s, self._min_samples)
        if expected > 0:
            self._open[attempt.attempt_id] = known, expected, attempt.sent_at_s
        return known.at(now_s)

    def observe(self, signal: AttemptSignal) -> None:
        """An attempt has its first token, or has ended; a prefill's first token is all that there is of it."""
        waited = self._open.pop(signal.attempt_id, None)
        if waited is not None and isinstance(signal, FirstToken | Completed | Superseded):
            known, expected, sent_at_s = waited
            known.add((signal.at_s - sent_at_s) / expected, signal.at_s)

"""The latency of the last while, as a ratio of sums that does not depend on how large the requests were."""

from policies.params import ADMISSION


class LatencyWindow:
    """Adds samples up until there are enough of them.

    A ratio of sums, and not a mean of ratios, which would be that of the shortest requests.

    Args:
        window_s: Shortest time that is looked at, seconds.
        min_samples: Fewest samples.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, window_s: float, min_samples: int) -> None:
        ADMISSION.check_positive("window_s", window_s)
        ADMISSION.check_number("min_samples", min_samples, 1)
        self._window_s = window_s
        self._min_samples = min_samples
        self._from_s: float | None = None
        self._latency_s = self._expected = self._most_in_flight = 0.0
        self._num_samples = 0

    def note_in_flight(self, in_flight: float) -> None:
        """So much is in flight now."""
        self._most_in_flight = max(self._most_in_flight, in_flight)

    def add(self, latency_s: float, expected: float, now_s: float) -> tuple[float, float] | None:
        """Takes in a sample.

        Args:
            latency_s: What was seen.
            expected: What it is in proportion to.
            now_s: Now.

        Returns:
            Latency over what it is in proportion to, and the most in flight, at the end of a window; else ``None``.
        """
        if self._from_s is None:
            self._from_s = now_s
        self._latency_s += latency_s
        self._expected += expected
        self._num_samples += 1
        is_over = now_s - self._from_s >= self._window_s and self._num_samples >= self._min_samples
        if not is_over or not self._expected or not self._latency_s:
            return None
        seen = self._latency_s / self._expected, self._most_in_flight
        self._from_s = now_s
        self._latency_s = self._expected = self._most_in_flight = 0.0
        self._num_samples = 0
        return seen

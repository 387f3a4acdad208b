"""How unlike requests are of late, and how unevenly they come."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LATEST = 512
"""Prompts and answers that count."""
WINDOW_S, WINDOWS = 10.0, 60
"""Arrivals are counted in ten minutes' windows; at one a second a Poisson process spreads by a third of its mean."""
MIN_VALUES = 30
"""Fewer say nothing."""
OF = "of"


class WorkSpread(Collector):
    """What makes a tail long before a fleet is full: lengths that differ, and arrivals that bunch.

    Of the last prompts, the last answers and the arrivals in windows of ten seconds it says the ratio of the 95th
    percentile to the median and that of the standard deviation to the mean. Nothing is reckoned before it is asked for.
    """

    def __init__(self) -> None:
        self._prompts: deque[int] = deque(maxlen=LATEST)
        self._answers: deque[int] = deque(maxlen=LATEST)
        self._arrivals: deque[int] = deque(maxlen=WINDOWS)
        self._window_ends_s = math.nan
        self._num_in_window = 0

    def arrived(self, prompt_tokens: int, now_s: float) -> None:
        """A request has come in."""
        self._prompts.append(prompt_tokens)
        if not now_s < self._window_ends_s:
            self._begin_window(now_s)
        self._num_in_window += 1

    def answered(self, output_tokens: int) -> None:
        """A request has been answered in full."""
        self._answers.append(output_tokens)

    def collect(self) -> Iterator[Metric]:
        known = {
            name: values
            for name, values in (
                ("prompt_tokens", self._prompts),
                ("output_tokens", self._answers),
                ("arrivals", self._arrivals),
            )
            if len(values) >= MIN_VALUES and any(values)
        }
        yield _family(
            "work_p95_over_p50",
            "95th percentile over median of the last prompts, answers, or arrivals in ten seconds.",
            {name: _p95_over_p50(values) for name, values in known.items()},
        )
        yield _family(
            "work_sd_over_mean",
            "Standard deviation over mean of the last prompts, answers, or arrivals in ten seconds.",
            {name: _sd_over_mean(values) for name, values in known.items()},
        )

    def _begin_window(self, now_s: float) -> None:
        """Closes the windows that are over, those in which nothing came included."""
        if math.isnan(self._window_ends_s):
            self._window_ends_s = now_s + WINDOW_S
            return
        self._arrivals.append(self._num_in_window)
        self._num_in_window = 0
        num_over = 1 + int((now_s - self._window_ends_s) // WINDOW_S)
        self._window_ends_s += num_over * WINDOW_S
        self._arrivals.extend([0] * min(num_over - 1, WINDOWS))


def _family(name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"spillway_{name}", text, labels=[OF])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _sd_over_mean(values: Sequence[int]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((each - mean) ** 2 for each in values) / len(values)) / mean


def _p95_over_p50(values: Sequence[int]) -> float:
    """Infinite where half of the values are 0."""
    in_order = sorted(values)
    median = in_order[len(values) // 2]
    return in_order[int(0.95 * len(values))] / median if median else math.inf

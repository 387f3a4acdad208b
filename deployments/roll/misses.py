"""How many requests miss an SLO or fail while something is being replaced, by the gateways' own counters."""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from scipy.stats import binom

LEAST_CHANCE = 0.001
"""So improbable is what is no chance any more: it is looked at every second."""
Counts = Mapping[tuple[str, ...], float]
"""What gateways count, by gateway and what of it."""


class Misses:
    """Of the requests that were answered since the first look: the part that missed an SLO, or failed."""

    def __init__(self) -> None:
        self._last: Counts = {}
        self._num_looks = 0
        self._grown: dict[tuple[str, bool], float] = {}

    def see(self, counts: Counts) -> None:
        """What gateways have counted until now; one that was not there before has counted from nothing."""
        for key, value in counts.items():
            before = self._last.get(key, 0.0)
            if self._num_looks:
                _, of, is_missed = key
                sort = of, is_missed == "missed"
                self._grown[sort] = self._grown.get(sort, 0.0) + max(0.0, value - before)
        self._last = {**self._last, **counts}
        self._num_looks += 1

    def too_many(self, most_fraction: float) -> str:
        """Which requests missed more than they may, in words; empty where none did, or it may be chance.

        Of ``n`` that were answered ``m`` missed: with the largest fraction that is allowed as many or more would with a
        probability of ``P(X >= m)``, ``X ~ Binomial(n, most_fraction)``.

        Args:
            most_fraction: So many may miss an SLO, or fail.
        """
        for of in sorted({of for of, _ in self._grown}):
            missed, met = (self._grown.get((of, is_missed), 0.0) for is_missed in (True, False))
            if missed and binom.sf(missed - 1, missed + met, most_fraction) < LEAST_CHANCE:
                return f"{missed:,.0f} of {missed + met:,.0f} requests missed: {of} (allowed: {most_fraction:.0%})"
        return ""


def counts_in(page: str) -> Counts:
    """What a page of metrics says of SLOs and of requests that failed."""
    counts: dict[tuple[str, ...], float] = {}
    for gateway, of, is_missed, value in _found_in(page):
        key = gateway, of, "missed" if is_missed else "met"
        counts[key] = counts.get(key, 0.0) + value
    return counts


def _found_in(page: str) -> Iterator[tuple[str, str, bool, float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            gateway = sample.labels.get("gateway", "")
            if sample.name == "spillway_lane_slo_total":
                yield gateway, sample.labels["slo"], sample.labels["met"] == "false", sample.value
            if sample.name == "spillway_canary_slo_total":
                yield gateway, f"{sample.labels['slo']} of canaries", sample.labels["met"] == "false", sample.value
            if sample.name == "spillway_requests_total" and sample.labels["outcome"] in ("completed", "failed"):
                yield gateway, "an answer", sample.labels["outcome"] == "failed", sample.value

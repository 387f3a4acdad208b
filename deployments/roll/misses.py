"""What users suffer while something is being replaced, and what they are spared because other replicas step in.

By the gateways' own counters. A canary that is slow, fails or stands still may make no request late: hedges beat it,
its requests are tried elsewhere, and it gets no more of them. So canaries are judged by their own attempts too.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from scipy.stats import binom

LEAST_CHANCE = 0.001
"""So improbable is what is no chance any more: it is looked at every second."""
ANSWERS, CANARY_ANSWERS = "an answer", "an answer of a canary"
Counts = Mapping[tuple[str, ...], float]
"""What gateways count: by gateway, what, and ``met``, ``missed`` or, of a canary, ``ejected``."""


class Misses:
    """Since the first look: the part of the requests that missed an SLO or failed, and canaries that were ejected."""

    def __init__(self) -> None:
        self._last: Counts = {}
        self._num_looks = 0
        self._grown: dict[tuple[str, str], float] = {}

    def see(self, counts: Counts) -> None:
        """What gateways have counted until now; one that was not there before has counted from nothing."""
        for key, value in counts.items():
            before = self._last.get(key, 0.0)
            if self._num_looks:
                sort = key[1], key[2]
                self._grown[sort] = self._grown.get(sort, 0.0) + max(0.0, value - before)
        self._last = {**self._last, **counts}
        self._num_looks += 1

    def too_many(self, most_fraction: float) -> str:
        """Which requests missed more than they may, in words; empty where none did, or it may be chance.

        Ejectors have weighed a replica against the others of its pool: one canary that they eject is one too many.
        Of ``n`` that were answered ``m`` missed: with the largest fraction that is allowed as many or more would with a
        probability of ``P(X >= m)``, ``X ~ Binomial(n, most_fraction)``.

        Args:
            most_fraction: So many may miss an SLO, or fail.
        """
        for of, sort in sorted(self._grown):
            if sort == "ejected" and self._grown[of, sort]:
                return f"a canary was ejected: {of}"
        for of in sorted({of for of, _ in self._grown}):
            missed, met = (self._grown.get((of, sort), 0.0) for sort in ("missed", "met"))
            if missed and binom.sf(missed - 1, missed + met, most_fraction) < LEAST_CHANCE:
                return f"{missed:,.0f} of {missed + met:,.0f} requests missed: {of} (allowed: {most_fraction:.0%})"
        return ""

    def seen(self) -> str:
        """By how much that is known, in words: canaries that got no requests are not known to do well."""
        answers, of_canaries = (
            sum(self._grown.get((of, sort), 0.0) for sort in ("met", "missed")) for of in (ANSWERS, CANARY_ANSWERS)
        )
        return f"{answers:,.0f} answers, {of_canaries:,.0f} attempts of canaries"


def counts_in(page: str) -> Counts:
    """What a page of metrics says of SLOs and of requests that failed."""
    counts: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            for of, sort in _told_by(sample.name, sample.labels):
                key = sample.labels.get("gateway", ""), of, sort
                counts[key] = counts.get(key, 0.0) + sample.value
    return counts


def _told_by(name: str, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a counter counts, if it says anything of users or of canaries."""
    if name == "spillway_lane_slo_total":
        yield labels["slo"], _sort(labels["met"] == "true")
    elif name == "spillway_canary_slo_total":
        yield f"{labels['slo']} of canaries", _sort(labels["met"] == "true")
    elif name == "spillway_requests_total" and labels["outcome"] in ("completed", "failed"):
        yield ANSWERS, _sort(labels["outcome"] == "completed")
    elif name == "spillway_canary_attempts_total":
        yield CANARY_ANSWERS, _sort(labels["result"] == "finished")
    elif name == "spillway_canary_ejections_total":
        yield labels["reason"], "ejected"


def _sort(is_met: bool) -> str:
    return "met" if is_met else "missed"

"""One replica has a long queue so that all others have short ones: large requests stand there, and few others."""

import math
from typing import ClassVar

from policies.candidates import Candidates, load_of
from policies.contracts import Need
from policies.estimators import FadingRate
from policies.params import BALANCING
from policies.signals import Signal
from policies.views import ReplicaView, RequestView

MEMORY_S = 60.0
SIZES_PER_OCTAVE = 4  # sizes between two powers of two that are told apart


class Card:
    """Which replica takes the attempt? A short replica for the small ones; the long replica for the large.

    Rule: of ``n`` candidates the last by id is the long one, the others are short. A size is prompt and expected answer
        in tokens. Small are those that make the first ``(n - 1) / n - medium_fraction / 2`` of the work of late, in
        order of size, large those beyond ``(n - 1) / n + medium_fraction / 2``. A small one goes to the short replica
        with the least work, a large one to the long replica. One between goes to the short replica while that has at
        most ``short_fraction`` of the mean work of all, else to the long replica. Whoever would find less work at the
        long replica goes there.
    State: how much work of each size came of late.
    Consumes: no signal; the views' work accounts, which need the replicas' reports.
    Complexity: O(n) in the candidates and O(s) in the sizes that were seen, some dozens.
    Failure mode: it is for replicas that serve in order of arrival. Where requests wait at the gateway
        (``prefill_window_tokens``) the order of its queue does as much, and a replica without room is no candidate, so
        that another one is the long one for a while. With two replicas half of the fleet is for long requests.
    Source: CARD of Xie, Grosof and Scully, "Heavy-Traffic Optimal Size- and State-Aware Dispatching" (SIGMETRICS 2024),
        in its flexible variant, with sizes learned.

    Args:
        medium_fraction: Of the work, that which goes where there is less to wait for.
        short_fraction: Of the mean work, up to which a short replica takes what is neither small nor large.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, medium_fraction: float = 0.2, short_fraction: float = 0.5) -> None:
        BALANCING.check_number("medium_fraction", medium_fraction, 0, 1)
        BALANCING.check_positive("short_fraction", short_fraction)
        self._medium_fraction = medium_fraction
        self._short_fraction = short_fraction
        self._work: dict[int, FadingRate] = {}

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        size = round(SIZES_PER_OCTAVE * math.log2(max(1, request.kv_tokens)))
        smaller, whole = self._work_below(size, now_s), self._work_below(math.inf, now_s)
        self._work.setdefault(size, FadingRate(MEMORY_S)).add(request.kv_tokens, now_s)
        *shorts, long = candidates
        if not shorts:
            return long
        short = min(shorts, key=load_of)
        if load_of(long) < load_of(short):
            return long
        border = len(shorts) / len(candidates) + self._medium_fraction * (0.5 - self._is_above(short, candidates))
        return short if smaller <= border * whole else long

    def _is_above(self, short: ReplicaView, candidates: Candidates) -> bool:
        """Whether the short replicas have as much work as is right for them."""
        return short.work_tokens * len(candidates) > self._short_fraction * candidates.total_work_tokens()

    def _work_below(self, size: float, now_s: float) -> float:
        return sum(rate.per_s_at(now_s) for each, rate in self._work.items() if each < size)

"""Lanes whose borders follow the prompts that come."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from policies.errors import ConfigError
from policies.views import FleetView, RequestView, Role
from routing.lanes.classifiers import FirstThatFits
from routing.lanes.lanes import Lane, TokenRange
from routing.lanes.size_intervals import (
    BINS_PER_OCTAVE,
    NUM_BINS,
    BorderSearch,
    LaneBorders,
    SizeHistogram,
    bin_of,
    jensen_shannon_distance,
    lower_edge_tokens,
)

EARLY = (Role.UNIFIED, Role.PREFILL)
"""Who computes prompts."""
MIN_GAIN_S = 0.001
"""Of the mean wait; less is noise."""
MIN_UTILISATION = 0.1
"""Of the busiest interval's own replicas, from which on there is something to gain: nine in ten find one idle below."""


class _Gaps:
    """How irregular arrivals are."""

    def __init__(self) -> None:
        self._count = self._sum_s = self._sum_s2 = 0.0
        self._last_s = math.nan

    def add(self, now_s: float) -> None:
        """Somebody came."""
        if not math.isnan(self._last_s):
            gap_s = now_s - self._last_s
            self._count += 1.0
            self._sum_s += gap_s
            self._sum_s2 += gap_s * gap_s
        self._last_s = now_s

    def fade(self, keep: float) -> None:
        """What was weighs less."""
        self._count, self._sum_s, self._sum_s2 = (keep * each for each in (self._count, self._sum_s, self._sum_s2))

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the gaps; 1, a Poisson process's, while nobody knows better."""
        if self._count < 2 or self._sum_s <= 0:
            return 1.0
        return max(0.0, self._count * self._sum_s2 / self._sum_s**2 - 1.0)


class AdaptiveLaneBorders:
    """Which lane is this request for? The one whose interval of prompt lengths it is in, with borders that move.

    Rule: lanes with the same ``prompt_tokens`` share an interval; among them the first whose ``output_tokens`` fit.
        Once in ``refresh_s`` the borders between intervals are set where the mean wait would be least, given the
        prompts of late, their work and the replicas that each interval has or may borrow: Allen-Cunneen waits, no
        interval above 90% of what its replicas can do. Borders move only for a gain of ``hysteresis``, a millisecond at
        least. Lengths count without what is cached. The configured ranges, which
        :func:`routing.lanes.classifiers.check_ranges` has seen, hold until ``min_requests`` have come, and whenever
        there is nothing to gain: while with them no interval would keep its own replicas busy for a tenth of the time,
        and once borders have moved, until it is half of that.
    State: two histograms of 80 bins, one of which fades by half at each refresh, and the sums behind one coefficient of
        variation.
    Complexity: O(1), and O(bins * intervals * replicas) once in ``refresh_s``.
    Failure mode: idle replicas that a lane may borrow count as its own, which is too much when several borrow, and who
        lends is taken to lose nothing; a mix that changes faster than ``refresh_s`` is always served with the borders
        of the one before.
    Source: size-interval task assignment; see :mod:`routing.lanes.size_intervals`.

    Args:
        refresh_s: Between two looks at the borders.
        hysteresis: Least gain for which they move, as a fraction of the mean wait.
        min_requests: Fewer say nothing.
        num_gateways: How many gateways share the requests: each sees its part of them, and all the replicas.
        token_s: What a prompt token takes when nobody knows the engines' rates, seconds.

    Raises:
        ConfigError: A number out of range.
    """

    def __init__(
        self,
        *,
        refresh_s: float = 60.0,
        hysteresis: float = 0.1,
        min_requests: int = 100,
        num_gateways: int = 1,
        token_s: float = 1e-4,
    ) -> None:
        above_0 = {"refresh_s": refresh_s, "min_requests": min_requests, "num_gateways": num_gateways}
        for name, value in {**above_0, "token_s": token_s}.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"policies.lanes.classifier.params.{name}", value, "more than 0")
        if not 0 <= hysteresis < 1:
            raise ConfigError("policies.lanes.classifier.params.hysteresis", hysteresis, "from 0 to less than 1")
        self._refresh_s = refresh_s
        self._hysteresis = hysteresis
        self._min_requests = min_requests
        self._num_gateways = num_gateways
        self._token_s = token_s
        self._configured = FirstThatFits()
        self._recent, self._window, self._gaps = SizeHistogram(), SizeHistogram(), _Gaps()
        self._reference: list[float] = []
        self._over_s = 0.0
        self._began_s = math.nan
        self._borders: LaneBorders | None = None
        self._intervals: list[TokenRange] = []
        self._names: list[str] = []
        self._drift = 0.0

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        size = request.geometry.uncached_tokens or request.prompt_tokens
        self._window.add(size, request.geometry.prefill_s or size * self._token_s)
        self._gaps.add(now_s)
        if not self._intervals:
            self._begin(lanes, now_s)
        elif now_s - self._began_s >= self._refresh_s:
            self._refresh(lanes, fleet, now_s)
        if self._borders is None:
            return self._configured.classify(request, lanes, fleet, now_s)
        number = sum(bin_of(size) >= border for border in self._borders)
        members = _members(lanes, self._intervals[number])
        fitting = (lane for lane in members if request.geometry.output_tokens in lane.output_tokens)
        return next(fitting, members[-1])

    def gauges(self) -> Mapping[str, float]:
        """For metrics: ``prompt_drift``, and ``lane_border_tokens:<lane>``, the shortest prompt of a lane.

        The drift is the Jensen-Shannon distance of the last window's lengths to those for which the borders were set:
        0 for the same mix, 1 for one that has nothing in common with it.
        """
        edges: list[float] = [each.at_least for each in self._intervals]
        if self._borders is not None:
            edges = [0.0, *(float(lower_edge_tokens(each)) for each in self._borders)]
        borders = {f"lane_border_tokens:{name}": edge for name, edge in zip(self._names, edges, strict=True)}
        return {"prompt_drift": self._drift, **borders}

    def _begin(self, lanes: Sequence[Lane], now_s: float) -> None:
        self._began_s = now_s
        self._intervals = sorted({lane.prompt_tokens for lane in lanes})
        self._names = ["+".join(lane.name for lane in lanes if lane.prompt_tokens == each) for each in self._intervals]

    def _refresh(self, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> None:
        """The end of a window."""
        window = self._window.count
        self._reference = self._reference or list(window)
        self._drift = jensen_shannon_distance(window, self._reference)
        self._recent.fade(0.5)
        self._recent.add_all(self._window)
        self._over_s = 0.5 * self._over_s + now_s - self._began_s
        servers = self._servers(lanes, fleet, now_s)
        if len(servers) > 1 and any(servers):
            lenders = [self._lenders(lanes, each) for each in self._intervals]
            reserves = [max(lane.reserve for lane in _members(lanes, each)) for each in self._intervals]
            over_s = self._over_s / self._num_gateways
            self._move(BorderSearch(self._recent, over_s, servers, self._gaps.scv, lenders=lenders, reserves=reserves))
        self._gaps.fade(0.5)
        self._window, self._began_s = SizeHistogram(), now_s

    def _move(self, search: BorderSearch) -> None:
        """Sets the borders, where that is worth it."""
        configured = tuple(_bin_from(each.at_least) for each in self._intervals[1:])
        present = self._borders or configured
        borders = self._borders
        if search.utilisation(configured) < (MIN_UTILISATION if borders is None else MIN_UTILISATION / 2):
            borders = None
        elif sum(self._recent.count) >= self._min_requests:
            best = search.best(present)
            too_busy, wait_s = search.cost(present)
            gain_s = wait_s - search.cost(best)[1]
            if too_busy or gain_s >= max(self._hysteresis * wait_s, MIN_GAIN_S):
                borders = best
        if (borders or configured) != present:
            self._reference, self._drift = list(self._window.count), 0.0
        self._borders = borders

    def _lenders(self, lanes: Sequence[Lane], interval: TokenRange) -> list[int]:
        """Numbers of the other intervals that an interval's lanes borrow from."""
        names = {name for lane in _members(lanes, interval) for name in lane.borrows_from}
        ranges = {lane.prompt_tokens for lane in lanes if lane.name in names} - {interval}
        return sorted(self._intervals.index(each) for each in ranges)

    def _servers(self, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> list[int]:
        """How many replicas each interval has; those of a pool that several share are split."""
        up = Counter(each.pool for role in EARLY for each in fleet.live(role, now_s))
        pools = [{pool for lane in _members(lanes, each) for pool in lane.pools} for each in self._intervals]
        users = Counter(pool for each in pools for pool in each)
        return [round(sum(up[pool] / users[pool] for pool in each)) for each in pools]


def _members(lanes: Sequence[Lane], interval: TokenRange) -> list[Lane]:
    """Lanes of an interval."""
    return [lane for lane in lanes if lane.prompt_tokens == interval]


def _bin_from(num_tokens: float) -> int:
    """The first bin above a border."""
    return max(1, min(NUM_BINS - 1, math.ceil(math.log2(max(1.0, num_tokens)) * BINS_PER_OCTAVE - 1e-9)))

"""Size-interval task assignment: where to divide a stream of jobs by size, so that the groups of servers wait least.

Jobs are counted in a histogram whose bins are fractions of an octave, so it is small whatever it has seen, and forgets.
Waits are those of :class:`policies.capacity.StationaryQueue`. What they err by, they err alike on both sides of a
border, which is what matters here.

Source: M. Harchol-Balter, "Performance Modeling and Design of Computer Systems", ch. 24 (size-interval assignment).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

from policies.capacity import StationaryQueue

BINS_PER_OCTAVE = 4
NUM_BINS = 20 * BINS_PER_OCTAVE
"""Up to 2**20 tokens; what is longer counts into the last bin."""
MAX_UTILISATION = 0.9
"""A group of servers that is busier than this is not worth considering."""
MAX_ROUNDS = 20
"""Of moving one border after the other; it has settled long before."""

LaneBorders = tuple[int, ...]
"""Ascending bins; jobs in a bin from ``borders[i]`` on belong to group ``i + 1`` or higher."""


def bin_of(num_tokens: int) -> int:
    """The bin that a length counts into."""
    return min(NUM_BINS - 1, int(math.log2(max(1, num_tokens)) * BINS_PER_OCTAVE))


def lower_edge_tokens(index: int) -> int:
    """The shortest length that counts into a bin, or would if there were one between its edges."""
    return math.ceil(2 ** (index / BINS_PER_OCTAVE) - 1e-9)


class SizeHistogram:
    """Jobs by size: how many, and the first two moments of the work in each bin."""

    def __init__(self) -> None:
        self.count = [0.0] * NUM_BINS
        self.work_s = [0.0] * NUM_BINS
        self.work_s2 = [0.0] * NUM_BINS

    def add(self, num_tokens: int, work_s: float) -> None:
        """Counts a job."""
        index = bin_of(num_tokens)
        self.count[index] += 1.0
        self.work_s[index] += work_s
        self.work_s2[index] += work_s * work_s

    def fade(self, keep: float) -> None:
        """Everything weighs ``keep`` times what it did."""
        for column in (self.count, self.work_s, self.work_s2):
            column[:] = [keep * each for each in column]

    def add_all(self, other: "SizeHistogram") -> None:
        """Counts another histogram's jobs."""
        for mine, theirs in ((self.count, other.count), (self.work_s, other.work_s), (self.work_s2, other.work_s2)):
            mine[:] = [one + more for one, more in zip(mine, theirs, strict=True)]


def jensen_shannon_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """How different two histograms are: 0 for the same proportions, 1 for nothing in common."""
    total_one, total_other = sum(one), sum(other)
    if not total_one or not total_other:
        return 0.0
    divergence = 0.0
    for left, right in zip(one, other, strict=True):
        p, q = left / total_one, right / total_other
        middle = (p + q) / 2
        divergence += sum(x * math.log2(x / middle) for x in (p, q) if x) / 2
    return math.sqrt(max(0.0, divergence))


class BorderSearch:
    """Finds borders of one histogram for groups of servers.

    Args:
        sizes: The jobs.
        over_s: In how much time they came.
        servers: Of each group, from the one for the smallest jobs on; not all 0.
        scv_arrivals: Squared coefficient of variation of the gaps between arrivals.
        lenders: For each group, those whose idle servers it may use as well; none when left out.
        reserves: For each group, how many idle servers it never lends.
    """

    def __init__(
        self,
        sizes: SizeHistogram,
        over_s: float,
        servers: Sequence[int],
        scv_arrivals: float,
        *,
        lenders: Sequence[Sequence[int]] = (),
        reserves: Sequence[int] = (),
    ) -> None:
        self._lenders = lenders or [()] * len(servers)
        self._reserves = reserves or [0] * len(servers)
        self._sums = [[0.0, *accumulate(each)] for each in (sizes.count, sizes.work_s, sizes.work_s2)]
        self._over_s = over_s
        self._servers = tuple(servers)
        self._scv_arrivals = scv_arrivals

    def cost(self, borders: LaneBorders) -> tuple[float, float]:
        """What is minimised: the mean wait of a job, or where a group is too busy, how busy the busiest is.

        Tuples compare as they should: first comes the utilisation, as 0 wherever it is acceptable.
        """
        waits_s, busiest = 0.0, 0.0
        groups = [[sums[high] - sums[low] for sums in self._sums] for low, high in pairwise((0, *borders, NUM_BINS))]
        for servers, (count, work_s, work_s2) in zip(self._with_loans(groups), groups, strict=True):
            if count < 1e-9 or work_s <= 0:
                continue
            mean_s = work_s / count
            rate_per_s = count / self._over_s
            busiest = max(busiest, rate_per_s * mean_s / servers if servers else math.inf)
            if busiest <= MAX_UTILISATION:
                scv_service = max(0.0, work_s2 / count / mean_s**2 - 1.0)
                queue = StationaryQueue(
                    rate_per_s=rate_per_s,
                    service_s=mean_s,
                    servers=servers,
                    scv_arrivals=self._scv_arrivals,
                    scv_service=scv_service,
                )
                waits_s += count * queue.mean_wait_s
        if busiest > MAX_UTILISATION:
            return busiest, math.inf
        return 0.0, waits_s / max(self._sums[0][-1], 1e-9)

    def utilisation(self, borders: LaneBorders) -> float:
        """How busy the busiest group is that borrows nothing; infinite for work where there are no servers."""
        work_s = [self._sums[1][high] - self._sums[1][low] for low, high in pairwise((0, *borders, NUM_BINS))]
        return max(
            0.0 if each <= 0 else each / self._over_s / servers if servers else math.inf
            for servers, each in zip(self._servers, work_s, strict=True)
        )

    def _with_loans(self, groups: Sequence[Sequence[float]]) -> list[int]:
        """Servers of each group, and those that are idle at its lenders, on average."""
        idle = [
            max(0.0, servers - reserve - work_s / self._over_s)
            for servers, reserve, (_, work_s, _) in zip(self._servers, self._reserves, groups, strict=True)
        ]
        lent = (int(sum(idle[each] for each in lenders)) for lenders in self._lenders)
        return [servers + more for servers, more in zip(self._servers, lent, strict=True)]

    def best(self, present: LaneBorders) -> LaneBorders:
        """The best borders there are: exactly with one border; else by moving one after the other, from two beginnings.

        Args:
            present: One beginning; of borders that are equally good, those near it are preferred. The other is the
                split that gives every server the same work.
        """
        return min((self._settled(each) for each in (present, self._same_work_for_all())), key=self.cost)

    def _settled(self, borders: LaneBorders) -> LaneBorders:
        """Where borders come to rest that are moved one after the other."""
        for _ in range(MAX_ROUNDS if len(borders) > 1 else 1):
            before = borders
            for number in range(len(borders)):
                borders = self._with_best(borders, number)
            if borders == before:
                break
        return borders

    def _same_work_for_all(self) -> LaneBorders:
        work_s = self._sums[1]
        shares = list(accumulate(self._servers))
        targets_s = [work_s[-1] * share / shares[-1] for share in shares[:-1]]
        return tuple(min(max(1, bisect_left(work_s, each)), NUM_BINS - 1) for each in targets_s)

    def _with_best(self, borders: LaneBorders, number: int) -> LaneBorders:
        """The same borders but for one, which stays as near as it can to where it was."""
        low = borders[number - 1] if number else 1
        high = borders[number + 1] if number + 1 < len(borders) else NUM_BINS - 1
        choices = [(*borders[:number], each, *borders[number + 1 :]) for each in range(low, high + 1)]
        return min(choices, key=lambda each: (*self.cost(each), abs(each[number] - borders[number])), default=borders)

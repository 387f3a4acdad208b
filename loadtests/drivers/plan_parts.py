"""A part of a workload's plan: thinned, one worker's share, some of its traffic classes.

A part sends what the whole plan would have sent, at the same times and under the same numbers, and leaves the rest out.
A conversation is in a part as a whole or not at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.seeds import Seeds
from loadtests.schema.ranges import require
from loadtests.workloads.content import uniform_of
from loadtests.workloads.workload import Planned, Workload


@dataclass(frozen=True, slots=True)
class Share:
    """Every so-maniest logical request of a plan: what one of several workers sends.

    Args:
        index: Which of the shares, from 0.
        of: How many shares there are.

    Raises:
        ConfigError: There is no such share.
    """

    index: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.index < self.of, "index", self.index, f"0 to {self.of - 1}, the number of shares less one")


WHOLE = Share()


def chosen_classes(known: Sequence[str], tags: Sequence[str], excluded_tags: Sequence[str]) -> tuple[str, ...]:
    """The traffic classes that ``--tags`` and ``--exclude-tags`` leave.

    Args:
        known: Names of the workload's classes.
        tags: Those to be sent; none: all.
        excluded_tags: Those not to be sent.

    Raises:
        ConfigError: None is left, or one that is to be left out is none of the workload's.
    """
    chosen = tuple(name for name in tags or known if name not in excluded_tags)
    allowed = f"some of {', '.join(known)}, and not all that are sent"
    require(bool(chosen) and set(excluded_tags) <= set(known), "--exclude-tags", sorted(excluded_tags), allowed)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfWorkload:
    """A part of a workload's plan.

    Thinning keeps the shape of the plan in time: a crowd that is ten times the usual stays that. It keeps a Poisson
    process one; arrivals that come in bunches come in less pronounced ones.

    Args:
        whole: The workload.
        fraction: Share of the logical requests, or of the sessions, that are kept.
        classes: Names of the traffic classes that are kept.
        share: Which of the kept ones are in this part; all shares together are all of them.

    Raises:
        ConfigError: The fraction is out of range, or there is no such class.
    """

    whole: Workload
    fraction: float
    classes: frozenset[str]
    share: Share = WHOLE

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "rate_fraction", self.fraction, "above 0 and at most 1")
        known = self.whole.class_names
        is_usable = bool(self.classes) and self.classes <= set(known)
        require(is_usable, "tags", sorted(self.classes), f"one or several of the traffic classes {list(known)}")

    @property
    def duration_s(self) -> float:
        """Nothing is scheduled at this time or later."""
        return self.whole.duration_s

    def plan(self, seeds: Seeds) -> Iterator[Planned]:
        """The first requests of the logical requests in this part, in order of time."""
        kept = filter(self._keeps(seeds), self.whole.plan(seeds))
        return (planned for number, planned in enumerate(kept) if number % self.share.of == self.share.index)

    def _keeps(self, seeds: Seeds) -> "_Keeps":
        names = self.whole.class_names
        classes = frozenset(number for number, name in enumerate(names) if name in self.classes)
        return _Keeps(classes, self.fraction, seeds.stream("rate_fraction").getrandbits(64))


@dataclass(frozen=True, slots=True)
class _Keeps:
    classes: frozenset[int]
    fraction: float
    key: int

    def __call__(self, planned: Planned) -> bool:
        request = planned.arrival.request
        return (
            request.traffic_class in self.classes and uniform_of(self.key, request.logical_request, 0) < self.fraction
        )

"""A policy held against others by marks, with Holm's correction for their number.

A mark that is a test has a p-value: the error probability at which the lower ends of its intervals would just do. For
cells it is that of the cell that is the last one needed: of 100 cells of which 95 have to be no worse, the 95th
smallest. Holm's correction asks the smallest p-value of ``m`` tests to be at most ``a / m``, the next one ``a / (m -
1)``, and so on until one is not; ``a`` is what an interval has below its lower end, 2.5% at a confidence of 95%.

Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6(2), 1979.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from loadtests.lab.suite.differences import SHARE, paired
from loadtests.lab.suite.marks import Marks
from loadtests.results.comparison import MIN_SEEDS, p_of_no_more_than
from policies.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMark:
    """One mark, and what was found.

    Args:
        name: What it asks.
        against: The policy that is compared with.
        found: What there is, in words.
        holds: Whether the values themselves do, whatever their intervals.
        p: Of the test; ``None`` for a mark that is none.
        allowed_p: By Holm's correction; ``None`` where a test before this one has failed.
    """

    name: str
    against: str
    found: str
    holds: bool
    p: float | None = None
    allowed_p: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether it has passed."""
        return self.holds and (self.p is None or (self.allowed_p is not None and self.p <= self.allowed_p))


def judge(found: pd.DataFrame, marks: Marks) -> list[JudgedMark]:
    """Judges a policy.

    Args:
        found: Runs, as :meth:`loadtests.lab.suite.suite_runs.SuiteRuns.of` gives them.
        marks: What it has to show.

    Raises:
        ConfigError: A policy or family is missing, or there are too few seeds for an interval.
    """
    marks.require_known(list(found["policy"].unique()), list(found["family"].unique()))
    num_seeds = found["seed"].nunique()
    if num_seeds < MIN_SEEDS:
        raise ConfigError("seeds", num_seeds, f"at least {MIN_SEEDS}, or there are no intervals")
    judged = [mark for other in marks.against for mark in _of_pair(paired(found, marks.policy, other), other, marks)]
    return _corrected(judged, (1 - marks.confidence) / 2)


def _of_pair(cells: pd.DataFrame, other: str, marks: Marks) -> Iterator[JudgedMark]:
    by_cell = [its for _, its in cells.groupby("cell", sort=False)]
    differences = np.array([_difference(its) for its in by_cell])
    yield _no_worse(by_cell, other, marks)
    yield JudgedMark(
        name=f"no cell below {marks.never_below:+.0%}",
        against=other,
        found=f"{int((differences < marks.never_below).sum())} of {len(by_cell)}, the worst {differences.min():+.1%}",
        holds=bool((differences >= marks.never_below).all()),
    )
    if other in marks.gain.against:
        yield _gain(cells[cells["family"] == marks.gain.family], other, marks)


def _no_worse(by_cell: Sequence[pd.DataFrame], other: str, marks: Marks) -> JudgedMark:
    than, fraction = marks.no_worse.than, marks.no_worse.in_fraction_of_cells
    chances = sorted(p_of_no_more_than(its["ours"].tolist(), its["theirs"].tolist(), than) for its in by_cell)
    needed = math.ceil(fraction * len(chances))
    num_no_worse = int(np.searchsorted(chances, (1 - marks.confidence) / 2, side="right"))
    return JudgedMark(
        name=f"no worse than {than:+.0%} in {fraction:.0%} of the cells",
        against=other,
        found=f"{num_no_worse} of {len(chances)} by intervals of {marks.confidence:.0%}",
        holds=True,
        p=chances[needed - 1],
    )


def _gain(cells: pd.DataFrame, other: str, marks: Marks) -> JudgedMark:
    of_seeds = cells.groupby("seed")[["ours", "theirs"]].mean()
    mean = _difference(of_seeds)
    return JudgedMark(
        name=f"a gain of {marks.gain.at_least:+.0%} in {marks.gain.family}",
        against=other,
        found=f"{mean:+.1%} in the mean of {cells['cell'].nunique()} cells",
        holds=mean >= marks.gain.at_least,
        p=p_of_no_more_than(of_seeds["ours"].tolist(), of_seeds["theirs"].tolist(), 0.0),
    )


def _difference(its: pd.DataFrame) -> float:
    return float((its["ours"] - its["theirs"]).mean())


def _corrected(judged: Sequence[JudgedMark], error: float) -> list[JudgedMark]:
    """With what each test is allowed; once one has failed, the following ones have, too."""
    tests = sorted((mark.p, number) for number, mark in enumerate(judged) if mark.p is not None)
    allowed: dict[int, float] = {}
    for rank, (p, number) in enumerate(tests):
        allowed[number] = error / (len(tests) - rank)
        if p > allowed[number]:
            break
    return [replace(mark, allowed_p=allowed.get(number)) for number, mark in enumerate(judged)]


def longest_beside(found: pd.DataFrame, marks: Marks) -> pd.DataFrame:
    """The judged policy's difference to each other one in each family: of all goodput, and of the longest tenth's."""
    rows = []
    for other in marks.against:
        both = paired(found, marks.policy, other)
        for family, its in both.groupby("family", sort=False):
            longest = float((its["ours_longest"] - its["theirs_longest"]).mean())
            rows.append({"family": family, "against": other, SHARE: _difference(its), "longest_tenth": longest})
    return pd.DataFrame(rows)

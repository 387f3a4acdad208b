"""How policies fare on the suite: goodput by family, and differences cell by cell with seeds paired.

Users who wait for answers come to want less where answers are slow: a conversation's later turns may come after the
end. So goodput is not taken of what a policy's own users wanted, but of the most that any policy's wanted on the same
cell and seed. Where nobody waits for anything, that is the same for all.
"""

from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.table import Table

from loadtests.results.comparison import compare
from loadtests.results.metrics import Better

GOODPUT, OF_THE_LONGEST, OFFERED = "goodput_fraction", "longest_tenth_goodput_fraction", "offered_requests"
WITHIN = 0.01
SHARE = "goodput"
"""Answered within the SLO, of the most that was wanted on the same cell and seed."""


def with_share(found: pd.DataFrame) -> pd.DataFrame:
    """Runs with their goodput as a share of what is the same for all policies, in the column ``SHARE``."""
    most = found.groupby(["cell", "seed"], sort=False)[OFFERED].transform("max")
    return found.assign(**{SHARE: found[GOODPUT] * found[OFFERED] / most})


def with_requests(found: pd.DataFrame) -> pd.DataFrame:
    """Runs of those seeds in which any policy has a request to measure; the others say nothing."""
    return found[found.groupby(["cell", "seed"], sort=False)[OFFERED].transform("max") > 0]


def paired(found: pd.DataFrame, policy: str, other: str) -> pd.DataFrame:
    """Two policies side by side on each cell and seed.

    Args:
        found: Runs, with goodput as a share.
        policy: The one.
        other: The other.

    Returns:
        ``cell``, ``family``, ``seed``, ``ours``, ``theirs``, and both of the longest tenth of prompts.
    """
    names = {SHARE: "ours", OF_THE_LONGEST: "ours_longest"}
    ours = found[found["policy"] == policy].rename(columns=names)
    theirs = found[found["policy"] == other].rename(columns={SHARE: "theirs", OF_THE_LONGEST: "theirs_longest"})
    keys = ["cell", "family", "seed"]
    return ours[[*keys, *names.values()]].merge(
        theirs[["cell", "seed", "theirs", "theirs_longest"]], on=["cell", "seed"]
    )


def differences(found: pd.DataFrame, policy: str, others: Sequence[str]) -> pd.DataFrame:
    """A policy's goodput less that of other ones, cell by cell.

    Args:
        found: Runs, with goodput as a share.
        policy: Which.
        others: What it is held against.

    Returns:
        ``cell``, ``family``, ``against``, ``difference``, ``low`` and ``high`` of its 95% interval; the worst first.
    """
    rows = []
    for other in others:
        for (cell, family), its in paired(found, policy, other).groupby(["cell", "family"], sort=False):
            difference = compare(its["ours"].tolist(), its["theirs"].tolist(), Better.HIGHER).difference
            ends = {"difference": difference.value, "low": difference.low, "high": difference.high}
            rows.append({"cell": cell, "family": family, "against": other, **ends})
    return pd.DataFrame(rows).sort_values("difference", kind="stable")


def means_table(found: pd.DataFrame) -> Table:
    """Goodput of all, and of the longest tenth, by family and policy.

    Args:
        found: Runs, with goodput as a share.
    """
    table = Table(title="goodput, and that of the longest tenth of prompts", title_justify="left", box=box.SIMPLE_HEAD)
    policies = list(dict.fromkeys(found["policy"]))
    for name in ("family", "cells", *policies):
        table.add_column(name, justify="left" if name == "family" else "right")
    for family, its in found.groupby("family", sort=False):
        means = its.groupby("policy")[[SHARE, OF_THE_LONGEST]].mean()
        cells = [f"{means.loc[each, SHARE]:.3f} {means.loc[each, OF_THE_LONGEST]:.3f}" for each in policies]
        table.add_row(str(family), str(its["cell"].nunique()), *cells)
    return table


def simplest_table(found: pd.DataFrame) -> Table:
    """By family and load, the first policy in the suite's order that is no more than ``WITHIN`` below the best.

    Args:
        found: Runs, with goodput as a share.
    """
    title = f"the simplest policy within {WITHIN:.0%} of the best, and its goodput; by family and load"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    loads = sorted(found["load"].unique())
    for name in ("family", *(f"{load:g}" for load in loads)):
        table.add_column(name)
    for family, its in found.groupby("family", sort=False):
        table.add_row(str(family), *(_simplest(its[its["load"] == load]) for load in loads))
    return table


def _simplest(found: pd.DataFrame) -> str:
    means = found.groupby("policy", sort=False)[SHARE].mean()
    return next((f"{name} {goodput:.2f}" for name, goodput in means.items() if goodput >= means.max() - WITHIN), "")


def worst_lines(differing: pd.DataFrame, num_shown: int) -> list[str]:
    """The worst cells, a line for each."""
    return [
        f"{row.cell}, against {row.against}: {row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
        for row in differing.head(num_shown).itertuples()
    ]

"""How a policy fares on the suite against the others: goodput by family, and differences cell by cell."""

import pandas as pd
from rich import box
from rich.table import Table

from loadtests.results.comparison import compare
from loadtests.results.metrics import Better

GOODPUT, OF_THE_LONGEST = "goodput_fraction", "longest_tenth_goodput_fraction"
NO_WORSE_THAN = -0.02
"""A difference of goodput from which on a policy counts as no worse, at the lower end of its interval."""
NEVER_WORSE_THAN = -0.05
WORST_SHOWN = 10


def differences(found: pd.DataFrame, policy: str) -> pd.DataFrame:
    """A policy's goodput less that of each other one, cell by cell, seeds paired.

    Args:
        found: As :func:`run_suite` gives it.
        policy: Which.

    Returns:
        ``cell``, ``family``, ``against``, ``difference``, ``low`` and ``high`` of its 95% interval.
    """
    rows = []
    for (cell, family), its in found.groupby(["cell", "family"], sort=False):
        by_policy = {name: values[GOODPUT].tolist() for name, values in its.groupby("policy", sort=False)}
        for other, theirs in by_policy.items():
            if other != policy:
                difference = compare(by_policy[policy], theirs, Better.HIGHER).difference
                ends = {"difference": difference.value, "low": difference.low, "high": difference.high}
                rows.append({"cell": cell, "family": family, "against": other, **ends})
    return pd.DataFrame(rows)


def means_table(found: pd.DataFrame) -> Table:
    """Goodput of all, and of the longest tenth, by family and policy."""
    table = Table(title="goodput, and that of the longest tenth of prompts", title_justify="left", box=box.SIMPLE_HEAD)
    policies = list(dict.fromkeys(found["policy"]))
    for name in ("family", "cells", *policies):
        table.add_column(name, justify="left" if name == "family" else "right")
    for family, its in found.groupby("family", sort=False):
        means = its.groupby("policy")[[GOODPUT, OF_THE_LONGEST]].mean()
        cells = [f"{means.loc[each, GOODPUT]:.3f} {means.loc[each, OF_THE_LONGEST]:.3f}" for each in policies]
        table.add_row(str(family), str(its["cell"].nunique()), *cells)
    return table


def summary_lines(differing: pd.DataFrame) -> list[str]:
    """What the differences come to, and the worst cells."""
    is_no_worse = differing["low"] >= NO_WORSE_THAN
    worst = differing.sort_values("difference").head(WORST_SHOWN)
    return [
        f"no worse than {NO_WORSE_THAN:+.0%} at the interval's lower end: {is_no_worse.mean():.1%} of {len(differing)}",
        f"below {NEVER_WORSE_THAN:+.0%}: {int((differing['difference'] < NEVER_WORSE_THAN).sum())}",
        *(f"mean over {family}: {its['difference'].mean():+.3f}" for family, its in differing.groupby("family")),
        *(
            f"worst: {row.cell}, against {row.against}: {row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
            for row in worst.itertuples()
        ),
    ]

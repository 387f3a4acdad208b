"""How a report names metrics and seeds."""

import math
from collections.abc import Iterable

from loadtests.reports.cells import ReportCell, fraction
from loadtests.reports.runs import Series
from loadtests.reports.svg.axes import duration
from loadtests.simulation.result_table import number


def named(series: Series) -> ReportCell:
    """A cell with the series's colour and name."""
    return ReportCell(text=series.label, series=series.number)


def seed_text(seeds: Iterable[int]) -> str:
    """``1 to 5``, or each of them where some between are missing."""
    found = sorted(seeds)
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found))


def metric_text(metric: str, value: float) -> str:
    """A metric's value in the unit that its name ends in."""
    if math.isnan(value):
        return "-"
    if metric.endswith("_fraction"):
        return fraction(value)
    return duration(value) if metric.endswith("_s") and not metric.endswith("_per_s") else number(value)

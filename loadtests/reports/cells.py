"""What a report's tables are made of: cells that the page and the Markdown summary both can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtests.results.comparison import Change
from loadtests.simulation.verdict import Verdict

TONES = {
    Change.BETTER: "good",
    Change.WORSE: "bad",
    "met": "good",
    "missed": "bad",
    "not judged": "unsure",
    Verdict.PASS.name: "good",
    Verdict.FAIL.name: "bad",
    Verdict.INVALID.name: "unsure",
}
"""How a conclusion looks; plain where it is neither good nor bad."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of a line from 0 to 1.

    Args:
        start: Where it begins.
        length: How long it is.
        tone: How it looks.
        point: A point on it, from 0 to 1.
    """

    start: float = 0.0
    length: float
    tone: str = ""
    point: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReportCell:
    """One cell.

    Args:
        text: What stands in it.
        is_number: Whether it is aligned to the right.
        tone: ``good``, ``bad`` or ``unsure`` for a badge of that colour; empty for plain text.
        series: Number of the series whose colour stands before the text; -1 for none.
        bars: Drawn after the text.
    """

    text: str
    is_number: bool = False
    tone: str = ""
    series: int = -1
    bars: Sequence[Bar] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Args:
        title: What it shows.
        head: A title for each column.
        rows: Cells, as many in each as there are titles.
        note: What a reader has to know; may be empty.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[ReportCell]]
    note: str = ""

    @property
    def without_empty_columns(self) -> "Table":
        """The table without columns in which no row has anything."""
        columns = range(len(self.head))
        return self.only([index for index in columns if any(row[index].text or row[index].bars for row in self.rows)])

    def only(self, columns: Sequence[int]) -> "Table":
        """The table with these columns."""
        rows = [[row[index] for index in columns] for row in self.rows]
        return replace(self, head=[self.head[index] for index in columns], rows=rows)


def text(value: str) -> ReportCell:
    """A cell of words."""
    return ReportCell(text=value)


def number_cell(value: str) -> ReportCell:
    """A cell of digits."""
    return ReportCell(text=value, is_number=True)


def badge(value: str) -> ReportCell:
    """A cell that says how it went."""
    return ReportCell(text=value, tone=TONES.get(value, ""))


def fraction(value: float) -> str:
    """A share as percent, with one decimal where it is not near 100."""
    if math.isnan(value):
        return "-"
    return f"{value:.2%}" if 0.99 <= value < 1 or 0 < value < 0.01 else f"{value:.1%}"

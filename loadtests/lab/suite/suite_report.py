"""What a run of the suite came to, as tables and as figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import plotly.express
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from loadtests.lab.suite.differences import OF_THE_LONGEST, SHARE, differences, means_table, simplest_table, worst_lines
from loadtests.lab.suite.judging import JudgedMark, longest_beside
from loadtests.lab.suite.marks import Marks

WIDTH = 160
"""Of the page, and of a terminal that has none."""
FAMILY_HEIGHT = 320
PAGE, FIGURES = "suite.txt", "goodput.html"
SHOWN = {SHARE: "goodput", OF_THE_LONGEST: "goodput of the longest tenth"}


def judgement_parts(found: pd.DataFrame, marks: Marks, judged: Sequence[JudgedMark]) -> Iterator[RenderableType]:
    """Marks, differences by family, and the worst cells.

    Args:
        found: Runs, with goodput as a share.
        marks: What had to be shown.
        judged: What was.
    """
    yield _marks_table(marks, judged)
    yield _families_table(longest_beside(found, marks), marks)
    lines = worst_lines(differences(found, marks.policy, marks.against), marks.worst_shown)
    yield Text("\n".join(("the worst cells, with their intervals", *(f"  {line}" for line in lines), "")))


def write_report(folder: Path, found: pd.DataFrame, parts: Sequence[RenderableType], console: Console) -> None:
    """Prints the tables, and leaves them and the figures in a folder.

    Args:
        folder: Made where there is none.
        found: Runs, with goodput as a share.
        parts: What is said beside the means.
        console: Where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wide = console if console.is_terminal else Console(file=console.file, width=WIDTH, highlight=False)
    with (folder / PAGE).open("w", encoding="utf-8") as page:
        for each in (wide, Console(file=page, width=WIDTH, highlight=False)):
            each.print(means_table(found))
            each.print(simplest_table(found))
            for part in parts:
                each.print(part)
    goodput_figure(found).write_html(folder / FIGURES)


def goodput_figure(found: pd.DataFrame) -> Figure:
    """Goodput over load, a row for each family, with that of the longest tenth beside it.

    Args:
        found: Runs, with goodput as a share.
    """
    families, colors = list(dict.fromkeys(found["family"])), plotly.express.colors.qualitative.Safe
    titles = [f"{family}: {shown}" for family in families for shown in SHOWN.values()]
    figure = make_subplots(len(families), 2, subplot_titles=titles, shared_yaxes="all")
    for row, family in enumerate(families, start=1):
        of_family = found[found["family"] == family]
        for number, policy in enumerate(dict.fromkeys(found["policy"])):
            means = of_family[of_family["policy"] == policy].groupby("load")[list(SHOWN)].mean()
            for column, measure in enumerate(SHOWN, start=1):
                line = Scatter(x=means.index, y=means[measure], name=str(policy), legendgroup=str(policy))
                line.update(mode="lines+markers", line={"color": colors[number % len(colors)]})
                figure.add_trace(line.update(showlegend=row == column == 1), row, column)
    figure.update_xaxes(title_text="load", rangemode="tozero")
    figure.update_yaxes(range=[0, 1.02])
    return figure.update_layout(template="simple_white", height=FAMILY_HEIGHT * len(families))


def _marks_table(marks: Marks, judged: Sequence[JudgedMark]) -> Table:
    title = f"{marks.policy} by its marks, with Holm's correction"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("mark", "against", "found", "p", "allowed", ""):
        table.add_column(name, justify="right" if name in {"p", "allowed"} else "left")
    for mark in judged:
        verdict = Text("PASS", "green") if mark.is_met else Text("FAIL", "bold red")
        table.add_row(mark.name, mark.against, mark.found, _chance(mark.p), _chance(mark.allowed_p), verdict)
    return table


def _chance(p: float | None) -> str:
    return "" if p is None else f"{p:.4f}"


def _families_table(beside: pd.DataFrame, marks: Marks) -> Table:
    title = f"{marks.policy} less each other policy: goodput, and that of the longest tenth"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("family", *marks.against):
        table.add_column(name, justify="left" if name == "family" else "right")
    for family, its in beside.groupby("family", sort=False):
        by_policy = its.set_index("against")
        cells = [
            f"{by_policy.loc[each, SHARE]:+.3f} {by_policy.loc[each, 'longest_tenth']:+.3f}" for each in marks.against
        ]
        table.add_row(str(family), *cells)
    return table

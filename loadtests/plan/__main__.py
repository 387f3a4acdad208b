"""Plans capacity. ``python -m loadtests.plan``."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loadtests.plan.figures import FILE, WorkedFigure, read_figures, worked_out
from loadtests.plan.figures import Group as FigureGroup
from policies.errors import ConfigError

WIDTH = 150
"""Of a terminal that has none."""
DESCRIPTION = "Works out the figures that capacity plans are made of, and holds them against what is told."
EXAMPLES = f"""\
examples:
  python -m loadtests.plan
      the figures of {FILE.name}, each with its formula
  python -m loadtests.plan mine.yaml
      your own, in a file like that one

exit status:
  0  each figure is what is told, as far as something is
  1  one is not
  2  a file can't be used
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.plan",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help="of figures (default: those that come along)")
    options = parser.parse_args(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=WIDTH)
    try:
        worked = [(group, list(worked_out(group))) for group in read_figures(options.file)]
    except ConfigError as error:
        err.print(f"plan: {error}", markup=False)
        return 2
    for group, figures in worked:
        out.print(_table(group, figures))
    differing = [each.figure.name for _, figures in worked for each in figures if not each.is_as_said]
    num_figures = sum(len(figures) for _, figures in worked)
    out.print(f"{num_figures} figures; not as told: {', '.join(differing) or 'none'}", markup=False)
    return 1 if differing else 0


def _table(group: FigureGroup, figures: Iterable[WorkedFigure]) -> Group:
    inputs = ", ".join(f"{name} {value:,g}" for name, value in group.inputs.items())
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("told", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("formula", ratio=3)
    table.add_column("assumes", ratio=2)
    for each in figures:
        figure = each.figure
        said = "" if figure.said is None else f"{figure.said:f}"
        verdict = Text("") if figure.said is None else Text("equal") if each.is_as_said else Text("differs", "bold red")
        table.add_row(figure.name, _number(each.value), said, verdict, figure.formula, figure.assumes)
        if figure.instead is not None:
            instead = figure.instead
            name, value = f"  {instead.name or 'instead'}", _number(each.instead_value)
            table.add_row(name, value, "", "", instead.formula, instead.why, style="dim")
    return Group(Text(group.name, "bold"), Text(group.about), Text(inputs, "dim"), table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())

"""Runs choices in pairs and says which of them are worse together than the better one alone.

``python -m loadtests.lab.run_composition``
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.lab.suite.composition import (
    DEFAULTS,
    FILE,
    Composition,
    differences_of_pairs,
    read_composition,
    warnings_of,
)
from loadtests.lab.suite.suite_file import Suite
from loadtests.lab.suite.suite_runs import SuiteRuns
from loadtests.lab.sweeping import FOLDER
from loadtests.simulation.compiled.build import CompilationFailed, is_compiled, rerun
from loadtests.simulation.results_file import check_can_be_written
from loadtests.simulation.simulation import RunFailed
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

WIDTH = 180
"""Of a terminal that has none."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
WARNED, LOSES = "w", "!"
EXAMPLES = f"""\
examples:
  python -m loadtests.lab.run_composition --compiled
      every pair of the choices in {FILE.name}
  python -m loadtests.lab.run_composition --choices recommended slowdown outlier
      the pairs of some of them

exit status:
  0  no pair loses but those that start-up warns of
  1  one does
  2  nothing is proved: a run is invalid, or the file can't be used
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status."""
    options = _parse(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        if options.compiled and not is_compiled():
            given = sys.argv[1:] if arguments is None else arguments  # the file names others beside the sources
            rerun("loadtests.lab.run_composition", [*given, "--composition", str(options.composition)])
        if options.json is not None:
            check_can_be_written(options.json)
        return _carry_out(_chosen(read_composition(options.composition), options.choices), options, out, err)
    except (ConfigError, RunFailed, CompilationFailed, BrokenProcessPool) as error:
        err.print(Text(f"run_composition: {error}", style="bold red"))
        return Verdict.INVALID
    except KeyboardInterrupt:
        err.print("run_composition: interrupted; runs that had ended are kept")
        return INTERRUPTED


def _carry_out(composition: Composition, options: argparse.Namespace, out: Console, err: Console) -> int:
    suite = composition.as_suite()
    cells = composition.cells_of(suite)
    found = SuiteRuns(suite=suite, jobs=options.jobs, folder=FOLDER).of(cells, list(suite.policies))
    differing = differences_of_pairs(found, composition).assign(
        warnings=lambda its: [
            _warnings(composition, suite, *place) for place in zip(its.cell, its.one, its.other, strict=True)
        ]
    )
    if options.json is not None:
        differing.to_json(options.json, orient="records", lines=True)
    wide = out if out.is_terminal else Console(file=out.file, width=WIDTH, highlight=False)
    wide.print(_matrix(differing, composition))
    for line in _losing_lines(differing, composition):
        wide.print(line, soft_wrap=True, markup=False)
    invalid = list(found.loc[found["problems"] != "", "problems"].unique())
    for problem in invalid:
        err.print(Text(f"run_composition: {problem}", style="bold yellow"))
    if invalid:
        return Verdict.INVALID
    return Verdict.FAIL if any(_mark(row, composition) == LOSES for row in _rows_of(differing)) else Verdict.PASS


def _warnings(composition: Composition, suite: Suite, cell: str, one: str, other: str) -> str:
    (place,) = (each for each in composition.cells_of(suite) if each.name == cell)
    return "; ".join(warnings_of(suite, place, composition.name_of((one, other))))


def _matrix(differing: pd.DataFrame, composition: Composition) -> Table:
    """The worst difference of each pair over all cells, in points of goodput."""
    title = (
        "goodput of two choices together less that of the better one alone, in points; the worst of "
        f"{len(composition.cells)} workloads; {LOSES}: a loss, {WARNED}: one that start-up warns of"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in (DEFAULTS, *composition.choices):
        table.add_column(name.replace("_", "_\u200b"), justify="right", overflow="fold")
    worst = {(row["one"], row["other"]): row for row in reversed(_rows_of(differing))}
    for one in composition.choices:
        cells = []
        for other in (DEFAULTS, *composition.choices):
            row = worst.get((other, one)) or worst.get((one, other))
            cells.append("" if row is None else f"{100 * row['difference']:+.1f}{_mark(row, composition)}")
        table.add_row(one, *cells)
    return table


def _losing_lines(differing: pd.DataFrame, composition: Composition) -> Iterator[str]:
    for row in _rows_of(differing):
        if mark := _mark(row, composition):
            pair = composition.name_of((row["one"], row["other"]))
            points, low, high = (100 * row[each] for each in ("difference", "low", "high"))
            ends = f"{points:+.1f} points [{low:+.1f}, {high:+.1f}]"
            yield f"{mark} {pair}: {ends} below {row['better']} alone, on {row['cell']}"


def _rows_of(differing: pd.DataFrame) -> list[Mapping[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in differing.to_dict("records")]


def _mark(row: Mapping[str, Any], composition: Composition) -> str:
    if row["difference"] >= -composition.loss_fraction:
        return ""
    return WARNED if row["warnings"] else LOSES


def _chosen(composition: Composition, names: Sequence[str]) -> Composition:
    if strangers := [name for name in names if name not in composition.choices]:
        raise ConfigError("--choices", strangers, f"some of {list(composition.choices)}")
    chosen = {name: composition.choices[name] for name in names or composition.choices}
    return composition.model_copy(update={"choices": chosen})


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.lab.run_composition",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--composition", type=Path, default=FILE, metavar="FILE", help="another file of choices")
    parser.add_argument("--choices", nargs="+", default=[], metavar="NAME", help="some of the choices")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="every pair on every workload, an object in each line"
    )
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help=f"processes at a time (default: {cores})")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile the simulator first, if need be; same results in a third of the time",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with all its processes
    sys.exit(main())

"""Runs the suite that policies are chosen and judged on.

``python -m loadtests.lab.run_suite --where family=ragged load=1``
"""

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, RenderableType
from rich.text import Text

from loadtests.lab.suite.cells import FAMILY, PART, Part, SuiteCell, Value, wanted_values
from loadtests.lab.suite.differences import differences, worst_lines
from loadtests.lab.suite.judging import JudgedMark, judge
from loadtests.lab.suite.marks import FILE as MARKS
from loadtests.lab.suite.marks import Marks, read_marks
from loadtests.lab.suite.suite_file import FILE, Suite, read_suite
from loadtests.lab.suite.suite_report import judgement_parts, write_report
from loadtests.lab.suite.suite_runs import SuiteRuns
from loadtests.lab.suite.trace_windows import VARIABLE
from loadtests.lab.sweeping import FOLDER
from loadtests.simulation.compiled.build import CompilationFailed, is_compiled, rerun
from loadtests.simulation.results_file import check_can_be_written
from loadtests.simulation.simulation import RunFailed
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

WORST_SHOWN = 10
REPORT = Path(".run/suite")
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
EXAMPLES = f"""\
examples:
  python -m loadtests.lab.run_suite --list --where family=ragged
      cells and policies, and which part each cell is in
  python -m loadtests.lab.run_suite --where family=ragged,days load=1 --policy edf lmetric --of edf
      two policies on some tuning cells, the one against the other
  python -m loadtests.lab.run_suite --cells 2 --traces ~/traces
      every policy on two tuning cells of each family, those on recorded traces included
  python -m loadtests.lab.run_suite --judging --traces ~/traces
      every policy on the judging part; once for a choice

Runs are kept in {FOLDER}, so what was run before costs nothing. Traces are not part of the project: the
folder is that of --traces, or of {VARIABLE}; without it the cells on traces are left out.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES``.

    Returns:
        0 when every run is valid and every mark met, 1 when a mark is missed, 2 when something can't be run or judged.
    """
    options = _parse(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        if options.compiled and not is_compiled():
            given = sys.argv[1:] if arguments is None else arguments  # the suite names files beside the sources
            rerun("loadtests.lab.run_suite", [*given, "--suite", str(options.suite)])
        suite = read_suite(options.suite)
        cells, policies = _chosen(suite, options), options.policy or list(suite.policies)
        if options.list:
            return _list(suite, cells, out)
        if options.json is not None:
            check_can_be_written(options.json)
        runs = SuiteRuns(suite=suite, jobs=options.jobs, folder=FOLDER, traces=options.traces)
        runnable = _with_trace(runs, cells, err)
        marks = _marks(options, policies, runnable)
        found = runs.of(runnable, policies)
        judged = [] if marks is None else judge(found, marks)
        _report(found, [] if marks is None else list(judgement_parts(found, marks, judged)), options, out)
        return _status(judged, [*_invalid(found), *_not_run(found, suite, options)], err)
    except (ConfigError, RunFailed, CompilationFailed, BrokenProcessPool) as error:
        err.print(Text(f"run_suite: {error}", style="bold red"))
        return Verdict.INVALID
    except KeyboardInterrupt:
        err.print("run_suite: interrupted; runs that had ended are kept")
        return INTERRUPTED


def _marks(options: argparse.Namespace, policies: Sequence[str], cells: Sequence[SuiteCell]) -> Marks | None:
    """What is judged by: marks that were asked for, and always where it is the judging part; before anything is run.

    Raises:
        ConfigError: They name what is not run.
    """
    if options.marks is None and options.part is not Part.JUDGING:
        return None
    marks = read_marks(options.marks or MARKS)
    marks.require_known(policies, {cell.family for cell in cells})
    return marks


def _with_trace(runs: SuiteRuns, cells: Sequence[SuiteCell], err: Console) -> list[SuiteCell]:
    """Cells that can be run; the others are named.

    Raises:
        ConfigError: There are none.
    """
    left_out = runs.without_trace(cells)
    if left_out:
        where = f"no {VARIABLE} and no --traces" if runs.traces is None else f"not in {runs.traces}"
        err.print(Text(f"run_suite: {len(left_out)} cells are left out, their traces are missing ({where}):", "yellow"))
        for cell in left_out:
            err.print(f"  {cell.name}")
    runnable = [cell for cell in cells if cell not in left_out]
    if not runnable:
        raise ConfigError("--traces", None if runs.traces is None else str(runs.traces), "a folder with these traces")
    return runnable


def _report(found: pd.DataFrame, parts: list[RenderableType], options: argparse.Namespace, out: Console) -> None:
    """Prints and keeps what was found."""
    if options.json is not None:
        found.to_json(options.json, orient="records", lines=True)
    if options.of:
        others = [name for name in found["policy"].unique() if name != options.of]
        lines = worst_lines(differences(found, options.of, others), WORST_SHOWN)
        parts.append(Text("\n".join((f"the worst cells of {options.of}", *(f"  {line}" for line in lines)))))
    write_report(options.output, found, parts, out)


def _status(judged: Sequence[JudgedMark], problems: Sequence[str], err: Console) -> int:
    for problem in problems:
        err.print(Text(f"run_suite: {problem}", style="bold yellow"))
    if problems:
        return Verdict.INVALID
    return Verdict.PASS if all(mark.is_met for mark in judged) else Verdict.FAIL


def _invalid(found: pd.DataFrame) -> list[str]:
    """Why runs are invalid."""
    return list(found.loc[found["problems"] != "", "problems"].unique())


def _not_run(found: pd.DataFrame, suite: Suite, options: argparse.Namespace) -> list[str]:
    """What is missing of the judging part where that is what is run: a part of it proves nothing."""
    judging = {cell.name for cell, part in suite.parts().items() if part is Part.JUDGING}
    missing = len(judging - set(found["cell"])) if options.part is Part.JUDGING else 0
    return [f"not judged: {missing} of the {len(judging)} cells for judging were not run"] if missing else []


def _chosen(suite: Suite, options: argparse.Namespace) -> list[SuiteCell]:
    """The cells that the command line names.

    Raises:
        ConfigError: There are none, or it names what the suite has not.
    """
    _require_known("--policy", options.policy, suite.policies)
    _require_known("--of", [options.of] if options.of else [], options.policy or suite.policies)
    wanted = wanted_values(options.where, suite.axes_of_cells())
    part = options.part or (None if options.list else Part.TUNING)
    if not options.list and part is Part.TUNING and Part.JUDGING in wanted.get(PART, ()):
        raise ConfigError("--where part", Part.JUDGING.value, "tuning; the judging part is run by --judging")
    cells = [cell for cell, its in suite.parts().items() if part in {None, its} and _is_at(cell, its, wanted)]
    if not cells:
        raise ConfigError("--where", options.where, "values that cells of this part have together")
    return cells if options.cells is None else suite.first_of_each_family(cells, options.cells)


def _is_at(cell: SuiteCell, part: Part, wanted: Mapping[str, Sequence[Value]]) -> bool:
    values = {FAMILY: cell.family, PART: part.value, **cell.values}
    return all(axis in values and values[axis] in its for axis, its in wanted.items())


def _require_known(option: str, names: Sequence[str], known: Mapping[str, Any] | Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(option, name, f"one of {list(known)}")


def _list(suite: Suite, cells: Sequence[SuiteCell], out: Console) -> int:
    parts = suite.parts()
    for cell in cells:
        out.print(f"{parts[cell]:8} {cell.name}", soft_wrap=True)
    for name, policy in suite.policies.items():
        out.print(f"policy   {name}: {policy.description}", soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.lab.run_suite",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--suite", type=Path, default=FILE, metavar="FILE", help="another suite")
    for part, text in ((Part.TUNING, "on the cells for tuning (the default)"), (Part.JUDGING, "on those for judging")):
        parser.add_argument(f"--{part}", dest="part", action="store_const", const=part, help=text)
    parser.add_argument(
        "--where", nargs="+", default=[], metavar="AXIS=VALUE", help="only these cells: family=ragged load=1,1.5"
    )
    parser.add_argument("--cells", type=_count, metavar="N", help="at most so many of each family, by their hashes")
    folder = os.environ.get(VARIABLE)
    parser.add_argument(
        "--traces",
        type=Path,
        default=Path(folder) if folder else None,
        metavar="DIR",
        help=f"of traces (default: {VARIABLE})",
    )
    parser.add_argument("--policy", nargs="+", default=[], metavar="NAME", help="these policies")
    parser.add_argument("--of", metavar="NAME", help="the policy that is held against each other one")
    parser.add_argument(
        "--marks", type=Path, metavar="FILE", help=f"judge by these, on any cells (on the judging part: {MARKS.name})"
    )
    parser.add_argument(
        "--output", type=Path, default=REPORT, metavar="DIR", help=f"for tables and figures (default: {REPORT})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run, a JSON object in each line")
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help=f"processes at a time (default: {cores})")
    parser.add_argument("--list", action="store_true", help="print cells and policies, and stop")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile the simulator first, if need be; same results in a third of the time",
    )
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with all its processes
    sys.exit(main())

"""Runs the suite that policies are chosen and judged on.

``python -m loadtests.lab.run_suite --part tuning``
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from loadtests.lab.judging import GOODPUT, OF_THE_LONGEST, differences, means_table, summary_lines
from loadtests.lab.lab_run import LabRun, run_kept
from loadtests.lab.suite import FILE, Part, Suite, SuiteCell, read_suite
from loadtests.lab.sweeping import FOLDER
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import POLICY
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.results_file import check_can_be_written
from loadtests.simulation.simulation import Run, RunFailed
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
EXAMPLES = """\
examples:
  python -m loadtests.lab.run_suite --list
      cells and policies, and which part each cell is in
  python -m loadtests.lab.run_suite --part tuning --only ragged --policy edf lmetric
      two policies on the tuning cells of one family
  python -m loadtests.lab.run_suite --part judging --of edf
      every policy on the judging part, and edf against each other one

Runs are kept in .run/lab, so what was run before costs nothing.
"""


def run_suite(
    suite: Suite, cells: Sequence[SuiteCell], policies: Sequence[str], jobs: int, folder: Path
) -> pd.DataFrame:
    """Runs policies on cells.

    Args:
        suite: The suite.
        cells: Of it.
        policies: Of it, by name.
        jobs: Processes at a time.
        folder: Where runs are kept.

    Returns:
        A row for each run: ``cell``, ``family``, ``policy``, ``seed``, the goodput of all and of the longest tenth, and
        ``problems``, why it is invalid; empty for a valid one.
    """
    places = [(cell, policy, seed) for cell in cells for policy in policies for seed in suite.seeds]
    scenarios = {(cell, policy): suite.scenario(cell, policy) for cell in cells for policy in policies}
    planned = [Run(scenario=scenarios[cell, policy], variant=POLICY, seed=seed) for cell, policy, seed in places]
    rows = []
    runs = [LabRun(run=each) for each in planned]
    records = simulate_all(runs, partial(run_kept, folder=folder), jobs, Console(stderr=True))
    for (cell, policy, seed), record in zip(places, records, strict=True):
        found = {name: record.metrics[ALL][name].value for name in (GOODPUT, OF_THE_LONGEST)}
        rows.append({"cell": cell.name, "family": cell.family, "policy": policy, "seed": seed, **found})
        rows[-1]["problems"] = "; ".join(record.problems)
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES``. 0 when every run is valid, 2 when one is not or can't be made."""
    options = _parse(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        suite = read_suite(options.suite)
        cells = _chosen(suite, options)
        if options.list:
            return _list(suite, cells, out)
        if options.json is not None:
            check_can_be_written(options.json)
        found = run_suite(suite, cells, options.policy or list(suite.policies), options.jobs, FOLDER)
    except (ConfigError, RunFailed, BrokenProcessPool) as error:
        err.print(Text(f"run_suite: {error}", style="bold red"))
        return Verdict.INVALID
    except KeyboardInterrupt:
        err.print("run_suite: interrupted; runs that had ended are kept")
        return INTERRUPTED
    return _report(found, options, out, err)


def _report(found: pd.DataFrame, options: argparse.Namespace, out: Console, err: Console) -> int:
    """Prints and keeps what was found; the status says whether all of it is valid."""
    out.print(means_table(found))
    for line in summary_lines(differences(found, options.of)) if options.of else []:
        out.print(line, soft_wrap=True)
    if options.json is not None:
        found.to_json(options.json, orient="records", lines=True)
    invalid = found[found["problems"] != ""]
    for problem in invalid["problems"].unique():
        err.print(Text(f"run_suite: {problem}", style="bold yellow"))
    return Verdict.PASS if invalid.empty else Verdict.INVALID


def _chosen(suite: Suite, options: argparse.Namespace) -> list[SuiteCell]:
    """The cells that the command line names.

    Raises:
        ConfigError: There are none, or it names what the suite has not.
    """
    _require_known("--only", options.only, suite.families)
    _require_known("--policy", options.policy, suite.policies)
    _require_known("--of", [options.of] if options.of else [], options.policy or suite.policies)
    wanted, families = options.part, options.only or list(suite.families)
    cells = [each for each in suite.cells() if each.family in families and wanted in (None, suite.part_of(each))]
    if not cells:
        raise ConfigError("--part", wanted, "a part in which these families have cells")
    return cells


def _require_known(option: str, names: Sequence[str], known: Mapping[str, Any] | Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(option, name, f"one of {list(known)}")


def _list(suite: Suite, cells: Sequence[SuiteCell], out: Console) -> int:
    for cell in cells:
        out.print(f"{suite.part_of(cell):8} {cell.name}")
    for name, policy in suite.policies.items():
        out.print(f"policy   {name}: {policy.description}")
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
    parser.add_argument("--part", choices=list(Part), help="cells for tuning or for judging (default: all)")
    parser.add_argument("--only", nargs="+", default=[], metavar="FAMILY", help="these families")
    parser.add_argument("--policy", nargs="+", default=[], metavar="NAME", help="these policies")
    parser.add_argument("--of", metavar="NAME", help="the policy that is held against each other one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run, a JSON object in each line")
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help=f"processes at a time (default: {cores})")
    parser.add_argument("--list", action="store_true", help="print cells and policies, and stop")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

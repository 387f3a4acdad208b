"""The suite that policies are chosen and judged on: a grid of workloads, split by a hash of each cell's name.

``python -m loadtests.lab.suite --part tuning``
"""

import argparse
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.lab.lab_run import LabRun, run_kept
from loadtests.lab.lab_scenario import at_load
from loadtests.lab.sweeping import FOLDER
from loadtests.results.comparison import compare
from loadtests.results.metrics import ALL, Better
from loadtests.scenario.fields import with_fields
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import Strict
from loadtests.simulation.parallel import simulate_all
from policies.errors import ConfigError

FILE = Path(__file__).with_name("suite.yaml")
GOODPUT, OF_THE_LONGEST = "goodput_fraction", "longest_tenth_goodput_fraction"
NO_WORSE_THAN = -0.02
"""A difference of goodput from which on a policy counts as no worse, at the lower end of its interval."""
NEVER_WORSE_THAN = -0.05
WORST_SHOWN = 10
EXAMPLES = """\
examples:
  python -m loadtests.lab.suite --list
      cells and policies, and which part each cell is in
  python -m loadtests.lab.suite --part tuning --only ragged --policy edf lmetric
      two policies on the tuning cells of one family
  python -m loadtests.lab.suite --part judging --of edf
      every policy on the judging part, and edf against each other one

Runs are kept in .run/lab, so what was run before costs nothing.
"""


class Part(StrEnum):
    """What a cell is for."""

    TUNING = "tuning"
    JUDGING = "judging"


class Axes(Strict):
    """What every family is crossed with.

    Args:
        cv: How bursty arrivals are, as the coefficient of variation of independent gaps.
        load: In capacities of the fleet.
        gateways: How many there are.
        tries: Requests of a client for each of its logical requests; above 1 as the openai package makes them.
    """

    cv: tuple[float, ...] = Field(min_length=1)
    load: tuple[float, ...] = Field(min_length=1)
    gateways: tuple[int, ...] = Field(min_length=1)
    tries: tuple[int, ...] = Field(min_length=1)


class Family(Strict):
    """Users of one kind.

    Args:
        description: What they are like.
        settings: Fields of the base scenario, by path.
        burstiness: Paths that get the cell's ``cv``.
    """

    description: str
    settings: dict[str, Any]
    burstiness: tuple[str, ...] = Field(min_length=1)


class PolicySet(Strict):
    """What is compared.

    Args:
        description: What it is.
        settings: Fields of the base scenario, by path.
    """

    description: str
    settings: dict[str, Any]


class Suite(Strict):
    """A suite's file.

    Args:
        version: Of the format.
        edition: Part of what decides which cells are for judging; another one after a choice was judged.
        seeds: The same for every policy.
        judging_fraction: Of all cells.
        base: The scenario that all others are made from.
        axes: What every family is crossed with.
        families: By name.
        policies: By name.
    """

    version: Literal[1]
    edition: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    judging_fraction: float = Field(gt=0, lt=1)
    base: dict[str, Any]
    axes: Axes
    families: dict[str, Family] = Field(min_length=1)
    policies: dict[str, PolicySet] = Field(min_length=1)

    def cells(self) -> Iterator["SuiteCell"]:
        """All of them, family by family."""
        axes = self.axes
        for family in self.families:
            for point in itertools.product(axes.cv, axes.load, axes.gateways, axes.tries):
                yield SuiteCell(family, *point)

    def part_of(self, cell: "SuiteCell") -> Part:
        """Which part a cell is in: that depends on the edition and the cell's name alone."""
        digest = hashlib.sha256(f"{self.edition} {cell.name}".encode()).digest()
        is_judging = int.from_bytes(digest[:8], "big") < self.judging_fraction * 2**64
        return Part.JUDGING if is_judging else Part.TUNING

    def scenario(self, cell: "SuiteCell", policy: str) -> Scenario:
        """A cell with a policy.

        Raises:
            ConfigError: They can't be together.
        """
        family = self.families[cell.family]
        settings = {
            **family.settings,
            **dict.fromkeys(family.burstiness, cell.cv),
            "fleet.num_gateways": cell.gateways,
            "clients": {"max_requests": 1} if cell.tries == 1 else "openai",
            **self.policies[policy].settings,
        }
        try:
            return at_load(validate(Scenario, with_fields(self.base, settings), FILE.parent), {"load": cell.load})
        except ConfigError as error:
            raise ConfigError(f"{cell.name}, {policy}: {error.field}", error.value, error.allowed) from error


@dataclass(frozen=True, slots=True)
class SuiteCell:
    """One workload; fields are those of :class:`Axes`."""

    family: str
    cv: float
    load: float
    gateways: int
    tries: int

    @property
    def name(self) -> str:
        return f"{self.family} cv={self.cv:g} load={self.load:g} gateways={self.gateways} tries={self.tries}"


def read_suite(path: Path = FILE) -> Suite:
    """Reads a suite.

    Raises:
        ConfigError: Something in it is wrong.
    """
    return validate(Suite, read_yaml(path), path.parent)


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
        A row for each run: ``cell``, ``family``, ``policy``, ``seed``, and the goodput of all and of the longest tenth.
    """
    places = [(cell, policy, seed) for cell in cells for policy in policies for seed in suite.seeds]
    scenarios = {(cell, policy): suite.scenario(cell, policy) for cell in cells for policy in policies}
    runs = [LabRun(scenario=scenarios[cell, policy], variant=POLICY, seed=seed) for cell, policy, seed in places]
    rows = []
    records = simulate_all(runs, partial(run_kept, folder=folder), jobs, Console(stderr=True))
    for (cell, policy, seed), record in zip(places, records, strict=True):
        found = {name: record.metrics[ALL][name].value for name in (GOODPUT, OF_THE_LONGEST)}
        rows.append({"cell": cell.name, "family": cell.family, "policy": policy, "seed": seed, **found})
    return pd.DataFrame(rows)


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


def marks(differing: pd.DataFrame) -> list[str]:
    """What the differences come to, a line for each mark, and the worst cells."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES``. 0 when everything ran, 2 when something can't be run."""
    options = _parse(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        suite = read_suite(options.suite)
        for option, names, known in (
            ("--only", options.only, suite.families),
            ("--policy", options.policy, suite.policies),
            ("--of", [options.of] if options.of else [], options.policy or suite.policies),
        ):
            _require_known(option, names, known)
        cells = [each for each in suite.cells() if _is_chosen(suite, each, options)]
        if options.list:
            return _list(suite, cells, out)
        found = run_suite(suite, cells, options.policy or list(suite.policies), options.jobs, FOLDER)
    except ConfigError as error:
        err.print(Text(f"suite: {error}", style="bold red"))
        return 2
    out.print(means_table(found))
    for line in marks(differences(found, options.of)) if options.of else []:
        out.print(line, soft_wrap=True)
    if options.json is not None:
        found.to_json(options.json, orient="records", lines=True)
    return 0


def _is_chosen(suite: Suite, cell: SuiteCell, options: argparse.Namespace) -> bool:
    is_in_part = options.part is None or suite.part_of(cell) == options.part
    return is_in_part and (not options.only or cell.family in options.only)


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
        prog="python -m loadtests.lab.suite",
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

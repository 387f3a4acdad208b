"""Runs of the suite: every policy on every cell and seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console

from loadtests.lab.lab_run import LabRun, run_kept
from loadtests.lab.suite.cells import SuiteCell
from loadtests.lab.suite.differences import GOODPUT, OF_THE_LONGEST, OFFERED, with_requests, with_share
from loadtests.lab.suite.suite_file import Suite
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import POLICY
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.simulation import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRuns:
    """How the suite is run.

    Args:
        suite: The suite.
        jobs: Processes at a time.
        folder: Where runs and capacities are kept.
        traces: The folder of recorded traces; ``None``: there is none.
    """

    suite: Suite
    jobs: int
    folder: Path
    traces: Path | None = None

    def without_trace(self, cells: Sequence[SuiteCell]) -> list[SuiteCell]:
        """Those that can't be run, because their trace is not there."""
        families = self.suite.families
        missing = {
            name for name, its in families.items() if its.trace is not None and its.trace.path(self.traces) is None
        }
        return [cell for cell in cells if cell.family in missing]

    def of(self, cells: Sequence[SuiteCell], policies: Sequence[str]) -> pd.DataFrame:
        """Runs policies on cells.

        Args:
            cells: Of the suite.
            policies: Of it, by name.

        Returns:
            A row for each run: ``cell``, ``family``, a column for each axis (NaN where the family does not have it),
            ``policy``, ``seed``, what was wanted, goodput of that, of the longest tenth and as a share, and
            ``problems``, why it is invalid; empty for a valid one. Seeds without a request are left out.

        Raises:
            ConfigError: A policy can't be run on a cell, or a cell's trace is not there.
            RunFailed: Something raised in the middle, most likely a policy.
        """
        console = Console(stderr=True)
        with console.status("what the fleets can do of each workload"):
            scenarios = {
                (cell, policy): self.suite.scenario(cell, policy, self.traces, self.folder)
                for cell in cells
                for policy in policies
            }
        places = [(*place, seed) for place in scenarios for seed in self.suite.seeds]
        runs = [
            LabRun(run=Run(scenario=scenarios[cell, policy], variant=POLICY, seed=seed))
            for cell, policy, seed in places
        ]
        records = simulate_all(runs, partial(run_kept, folder=self.folder), self.jobs, console)
        rows = []
        for (cell, policy, seed), record in zip(places, records, strict=True):
            found = {name: record.metrics[ALL][name].value for name in (OFFERED, GOODPUT, OF_THE_LONGEST)}
            which = {"cell": cell.name, "family": cell.family, **cell.values, "policy": policy, "seed": seed}
            rows.append({**which, **found, "problems": "; ".join(record.problems)})
        return with_share(with_requests(pd.DataFrame(rows)))

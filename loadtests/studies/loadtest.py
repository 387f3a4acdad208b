"""Starts emulated engines, drives them with scenarios through locust, and simulates the same plans beside it.

``python -m loadtests.studies.loadtest [--seconds 60] [--save .run/loadtest]``

The engines emulate H100s in real time, so two cores can pass on a small part of what the fleet of the scenarios could
serve: each scenario is thinned until client, gateway and engines together have fewer than 2,000 tokens a second.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engines.model.profile import load_profile
from loadtests.drivers.live_run import LivePlan, plan_of
from loadtests.live.configuration import read_config
from loadtests.live.counterpart import Counterpart
from loadtests.live.deployed import deployed
from loadtests.live.hop import with_hop
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.systems import ROOT
from loadtests.report import write_report
from loadtests.reports.agreement import GOAL, agreement_ratio, is_within_goal
from loadtests.results.metrics import ALL, METRICS
from loadtests.results.run_folder import RUN_FILE, SavedRun, read
from loadtests.simulation.junit import JUNIT_FILE
from loadtests.simulation.result_table import TOO_FEW
from loadtests.simulation.save_folder import fill_folder, make_folder
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

PORT = 8380
CONFIG = "emulated.yaml"
LOG_NAME = "emulated"
PROFILE = "h100-llama3-8b"
LOCUSTFILE = ROOT / "loadtests" / "locustfile.py"
SEED = 1
NOT_JUDGED = "ratio: measured / simulated. The exit status does not judge it: whatever else the machine does moves it."
SIDE_BY_SIDE = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "e2e_p50_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadtestCase:
    """One scenario, as two cores can drive and serve it.

    Args:
        scenario: Its name.
        rate_fraction: Share of its requests that are sent.
    """

    scenario: str
    rate_fraction: float

    def plan(self, seconds: float) -> LivePlan:
        """What is sent."""
        return plan_of(self.scenario, seed=SEED, rate_fraction=self.rate_fraction, salt="", duration_s=seconds)


CASES = (LoadtestCase(scenario="ragged", rate_fraction=0.05), LoadtestCase(scenario="flash-crowd", rate_fraction=0.02))


def drive(case: LoadtestCase, seconds: float, folder: Path) -> Verdict:
    """Runs a case through locust, which prints what it came to and ends with the verdict.

    Args:
        case: Which.
        seconds: How long requests come.
        folder: Where the run is written.
    """
    options = {
        "--scenario": case.scenario,
        "--rate-fraction": str(case.rate_fraction),
        "--duration": str(seconds),
        "--seed": str(SEED),
        "--host": f"http://127.0.0.1:{PORT}",
        "--save": str(folder),
        "--loglevel": "WARNING",
    }
    flat = [word for option in options.items() for word in option]
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", *flat]
    for name in (RUN_FILE, JUNIT_FILE):
        (folder / name).unlink(missing_ok=True)
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return Verdict(status) if (folder / RUN_FILE).exists() else Verdict.INVALID


def side_by_side(real: SavedRun, virtual: SavedRun) -> Table:
    """What both came to, and whether they are as close as the report wants it."""
    title = f"{real.record.scenario}: measured and simulated"
    table = Table(title=title, title_justify="left", caption=NOT_JUDGED, caption_justify="left")
    for heading in ("metric", "measured", "simulated", "ratio", f"within {GOAL:.0%}"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for metric in SIDE_BY_SIDE:
        ours, theirs = (each.record.metrics[ALL].get(metric) for each in (real, virtual))
        if ours is not None and theirs is not None:
            ratio = agreement_ratio(ours.value, theirs.value)
            is_quotable = min(ours.samples, theirs.samples) >= METRICS[metric].min_samples
            verdict = ("yes" if is_within_goal(ratio) else "no") if is_quotable else TOO_FEW
            times = f"{1e3 * ours.value:,.1f} ms", f"{1e3 * theirs.value:,.1f} ms"
            table.add_row(metric, *times, f"{ratio:.3f}", verdict)
    return table


def run(cases: Sequence[LoadtestCase], seconds: float, folder: Path, console: Console) -> Verdict:
    """Runs all cases against one deployment; the verdict is the worst of what was measured.

    Args:
        cases: Which.
        seconds: How long requests come, for each.
        folder: Gets a folder for each run.
        console: Where it is told.

    Raises:
        RuntimeError: The deployment does not start; the message names its log.
    """
    document = read_config(CONFIG)
    worst = Verdict.PASS
    folders = []
    console.print(f"starting {CONFIG}; its log: {folder / LOG_NAME}.log", highlight=False)
    with deployed(LOG_NAME, document, folder, PORT, None) as running:
        counterpart = with_hop(Counterpart(document=document, profile=load_profile(PROFILE)), running)
        for case in cases:
            console.print(f"{case.scenario} for {seconds:g} s, {case.rate_fraction:g} of its rate", highlight=False)
            live, virtual = folder / case.scenario, folder / f"{case.scenario}-simulated"
            foreign = ForeignLoad(running.pid)
            worst = max(worst, drive(case, seconds, live))
            console.print(f"other processes on the machine: {foreign.fraction():.0%} of it", highlight=False)
            saved = counterpart.run(case.plan(seconds))
            fill_folder(virtual, saved)
            console.print(side_by_side(read(live), saved))
            folders += [live, virtual]
    report = folder / "report.html"
    write_report(folders, report, "load test of emulated.yaml", Console(stderr=True))
    console.print(f"report: {report}", highlight=False, soft_wrap=True)
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: 0 when every run passes, 1 when a check is missed, 2 when something proves nothing."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        make_folder(options.save)
        return run(options.scenarios, options.seconds, options.save, console)
    except (RuntimeError, OSError, ConfigError) as error:
        console.print(Text(str(error), style="red"))
        return Verdict.INVALID
    except KeyboardInterrupt:
        console.print("interrupted")
        return Verdict.INVALID


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.loadtest",
        description=(__doc__ or "").split("\n\n", maxsplit=1)[0] + "\n\n"
        "exit status: 0 every run passes, 1 a check is missed, 2 a run is invalid or the deployment did not start.\n"
        f"Whether measured and simulated are within {GOAL:.0%} of each other is printed, and not judged.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    by_name = {case.scenario: case for case in CASES}
    parser.add_argument("--seconds", type=float, default=60.0, help="how long requests come, for each (default: 60)")
    parser.add_argument(
        "--scenarios", nargs="+", default=list(by_name), choices=list(by_name), help="which (default: all)"
    )
    parser.add_argument("--save", type=Path, default=ROOT / ".run" / "loadtest", help="where the runs are written")
    options = parser.parse_args(arguments)
    if not 10 <= options.seconds <= 3600:
        parser.error(f"--seconds: got {options.seconds:g}; allowed: from 10 to 3600")
    options.scenarios = [by_name[name] for name in options.scenarios]
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with the deployment
    sys.exit(main())

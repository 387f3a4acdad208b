"""Overload over HTTP: more than a deployment can serve, from outside, with and without admission.

``python -m loadtests.studies.overload [--engine emulated|vllm] [--loads 3] [--policies none,deadline] [--seconds 60]``

Each policy's deployment is started once and gets the same plans, open loop: first far more than it can do, without
admission, to find its capacity, then each load as a share of that. What counts is goodput over *offered* requests, how
long a refusal takes to reach its client, and that nothing is left behind.
"""

import argparse
import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.seeds import Seeds
from cluster.sim.run_table import OUTCOMES, RunTable
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.http_driver import HttpRun, drive
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.machine.pinning import pin, unpin
from loadtests.machine.systems import ROOT, System, up
from loadtests.results.slo import ClassSlo
from loadtests.studies.fidelity.metrics import completions_per_s
from loadtests.studies.fidelity.runs import MODEL
from loadtests.studies.overload_cases import CASES, NONE, POLICIES, OverloadCase, document_of, workload_of
from loadtests.watch.gateway_page import TookTooLong, wait_for
from loadtests.workloads.clients import Clients
from loadtests.workloads.workload import Workload
from routing.request.effects import OutcomeKind

PORT = 8350
URL = f"http://127.0.0.1:{PORT}"
FLOOD_SETTLES_S = 8.0
DRAIN_PATIENCE_S = 90.0
REFUSAL_P99_S = 0.05
STATED_ERRORS = ("HTTP 429", "HTTP 503 no_replica_available", "HTTP 504 deadline_exceeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadCell:
    """One run.

    Args:
        policy: A key of ``POLICIES``.
        load: Share of the capacity.
        offered: Requests.
        good: Share of them that was answered within the SLO.
        admitted: Share of them that was answered in full, in time or late.
        kept: Share of those that was good.
        refusals: Refused requests.
        refusal_p50_s: From sending to the refusal.
        refusal_p99_s: Likewise.
        ttft_p99_s: Of answered requests.
        unstated: Errors that no overload explains, and how often.
        left_open: Requests that the gateway still held when the drain was over.
        send_lag_p99_s: How late the client was.
    """

    policy: str
    load: float
    offered: int
    good: float
    admitted: float
    kept: float
    refusals: int
    refusal_p50_s: float
    refusal_p99_s: float
    ttft_p99_s: float
    unstated: dict[str, int]
    left_open: int
    send_lag_p99_s: float


def _drive(workload: Workload, seed: int, salt: str, until_s: float = math.inf) -> HttpRun:
    endpoint = Endpoint(base_url=URL, model=MODEL)
    clients, prompts = Clients(workload, Seeds(seed)), PromptTokens(ORDINARY_TOKENS, salt)
    return asyncio.run(drive(endpoint, clients, prompts, workload.class_names, until_s=until_s))


def _cell(policy: str, load: float, slo: ClassSlo, run: HttpRun, left_open: int) -> OverloadCell:
    table = run.table
    completed = table.outcome == OUTCOMES.index(OutcomeKind.COMPLETED.value)
    refused = table.outcome == OUTCOMES.index(OutcomeKind.REFUSED.value)
    ttft_s = (table.first_token_s - table.scheduled_s)[completed]
    good = completed & _is_good(table, slo)
    refusal_s = (table.end_s - table.sent_s)[refused]
    errors = {name: count for name, count in run.health.errors.items() if not name.startswith(STATED_ERRORS)}
    return OverloadCell(
        policy=policy,
        load=load,
        offered=len(table),
        good=float(good.mean()),
        admitted=float(completed.mean()),
        kept=float(good.sum() / max(1, completed.sum())),
        refusals=int(refused.sum()),
        refusal_p50_s=_quantile(refusal_s, 0.5),
        refusal_p99_s=_quantile(refusal_s, 0.99),
        ttft_p99_s=_quantile(ttft_s, 0.99),
        unstated=errors,
        left_open=left_open,
        send_lag_p99_s=run.health.send_lag_p99_s,
    )


def _is_good(table: RunTable, slo: ClassSlo) -> NDArray[np.bool_]:
    ttft_s = table.first_token_s - table.scheduled_s
    tpot_s = (table.end_s - table.first_token_s) / np.maximum(1, table.output_tokens - 1)
    limits_s = slo.ttft_s or math.inf, slo.tpot_s or math.inf
    in_time: NDArray[np.bool_] = (ttft_s <= limits_s[0]) & (tpot_s <= limits_s[1])
    return in_time


def _quantile(values: NDArray[np.float64], quantile: float) -> float:
    return float(np.quantile(values, quantile)) if len(values) else math.nan


def _drained(process: "subprocess.Popen[bytes]") -> int:
    """Waits until the gateway holds nothing any more; what it holds in the end, as it says itself."""
    try:
        page = wait_for(
            URL, process, lambda page: page.sum("spillway_requests_open") == 0, DRAIN_PATIENCE_S, "no open request"
        )
    except TookTooLong as late:  # what is left is a metric of its own
        page = late.page
    return int(page.sum("spillway_requests_open"))


def _capacity_rps(case: OverloadCase, process: "subprocess.Popen[bytes]") -> float:
    """What is completed of far too much."""
    flood = workload_of(case, case.flood_rps, case.flood_s)
    run = _drive(flood, seed=0, salt="flood", until_s=case.flood_s)
    _drained(process)
    return completions_per_s(run.table, FLOOD_SETTLES_S, case.flood_s)


def measure(
    case: OverloadCase, policies: Sequence[str], loads: Sequence[float], run_s: float, *, logs: Path, progress: Progress
) -> tuple[float, list[OverloadCell]]:
    """Every policy at every load.

    Args:
        case: What is overloaded.
        policies: Keys of ``POLICIES``; the capacity is measured without admission.
        loads: Shares of the capacity.
        run_s: How long requests arrive in each run.
        logs: Folder for the deployments' logs.
        progress: Moves on with every run.

    Returns:
        The capacity in requests per second, and the runs.

    Raises:
        RuntimeError: A deployment does not start; the message names its log.
    """
    task = progress.add_task("starting", total=len(policies) * len(loads) + 1)
    capacity_rps, cells = math.nan, list[OverloadCell]()
    for policy in dict.fromkeys((NONE, *policies)):
        progress.update(task, description=f"{policy}: starting")
        with _deployment(case, policy, logs) as process, _on_cores_of_their_own(case, process.pid):
            _drive(workload_of(case, 4.0, 5.0), seed=0, salt="warm-up")
            if policy == NONE:
                progress.update(task, description="capacity")
                capacity_rps = _capacity_rps(case, process)
                progress.update(task, advance=1)
            for load in loads if policy in policies else ():
                progress.update(task, description=f"{policy}: {load:g}x of {capacity_rps:.1f} requests/s")
                plan = workload_of(case, load * capacity_rps, run_s)
                run = _drive(plan, seed=1, salt=f"{policy}/{load}")
                cells.append(_cell(policy, load, case.slo, run, _drained(process)))
                progress.update(task, advance=1)
    return capacity_rps, cells


@contextmanager
def _deployment(case: OverloadCase, policy: str, logs: Path) -> Iterator["subprocess.Popen[bytes]"]:
    path = logs / f"overload-{policy}.yaml"
    path.write_text(yaml.safe_dump(document_of(case, policy), sort_keys=False))
    command = [sys.executable, "-m", "deployments.launch", str(path), "--port", str(PORT)]
    system = System(name=policy, command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={})
    with up(system, path.with_suffix(".log")) as process:
        yield process


@contextmanager
def _on_cores_of_their_own(case: OverloadCase, pid: int) -> Iterator[None]:
    """Keeps engines apart from the rest, where the case says so."""
    if not case.pins:
        yield
        return
    pin(pid, (0,), (1,))
    try:
        yield
    finally:
        unpin()


def table_of(cells: Sequence[OverloadCell], title: str) -> Table:
    """A row for each run."""
    table = Table(title=title, title_justify="left")
    columns = (
        "policy",
        "load",
        "offered",
        "good",
        "admitted",
        "of them good",
        "refusal p50",
        "p99",
        "TTFT p99",
        "left",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for cell in cells:
        shares = (f"{share:.3f}" for share in (cell.good, cell.admitted, cell.kept))
        times = (_milliseconds(each) for each in (cell.refusal_p50_s, cell.refusal_p99_s, cell.ttft_p99_s))
        table.add_row(cell.policy, f"{cell.load:g}x", f"{cell.offered:,}", *shares, *times, str(cell.left_open))
    return table


def _milliseconds(value_s: float) -> str:
    return "-" if math.isnan(value_s) else f"{1000 * value_s:,.0f} ms"


def verdicts(case: OverloadCase, cells: Sequence[OverloadCell]) -> tuple[list[str], bool]:
    """A line for each check that a run of ``deadline`` is held against, and whether all are met."""
    checks = list[tuple[str, float, float, bool]]()
    for cell in (each for each in cells if each.policy == "deadline"):
        name = f"deadline at {cell.load:g}x"
        if (least := case.goodput.get(cell.load)) is not None:
            checks.append((f"{name}: goodput over offered", cell.good, least, cell.good >= least))
        if (least := case.kept_fraction.get(cell.load)) is not None:
            checks.append((f"{name}: admitted within the SLO", cell.kept, least, cell.kept >= least))
        if cell.refusals:
            is_quick = cell.refusal_p99_s <= REFUSAL_P99_S
            checks.append((f"{name}: refusal p99, s", cell.refusal_p99_s, REFUSAL_P99_S, is_quick))
        checks.append((f"{name}: unstated errors", sum(cell.unstated.values()), 0, not cell.unstated))
        checks.append((f"{name}: requests left open", cell.left_open, 0, cell.left_open == 0))
    lines = [f"{name}: {value:.3g}, check {check:g}: {'met' if ok else 'MISSED'}" for name, value, check, ok in checks]
    return lines, all(ok for *_, ok in checks)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.overload",
        description=(__doc__ or "").split("\n\n")[0] + "\n\n"
        "exit status: 0 all checks are met, 1 one is missed, 2 a deployment did not start.\n"
        "Needs the machine to itself; a minute and a half for each policy and load.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=sorted(CASES), default="emulated", help="(default: emulated)")
    parser.add_argument("--loads", default="3", help="shares of the capacity, with commas (default: 3)")
    parser.add_argument(
        "--policies", default="none,deadline", help=f"of {', '.join(POLICIES)} (default: none,deadline)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long requests arrive in a run (default: 60)")
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "overload.json", help="where the metrics go")
    options = parser.parse_args(arguments)
    options.policies = options.policies.split(",")
    if unknown := sorted(set(options.policies) - set(POLICIES)):
        parser.error(f"--policies: got {unknown}; allowed: {', '.join(POLICIES)}")
    try:
        options.loads = [float(each) for each in options.loads.split(",")]
    except ValueError:
        parser.error(f"--loads: got {options.loads!r}; allowed: numbers with commas, such as 0.5,1,1.5,3")
    if not all(0 < each <= 10 for each in options.loads):
        parser.error(f"--loads: got {options.loads}; allowed: above 0, at most 10")
    if not 0 < options.seconds <= 600:
        parser.error(f"--seconds: got {options.seconds:g}; allowed: above 0, at most 600")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and the checks, writes the JSON."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    case = CASES[options.engine]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Progress(console=Console(stderr=True)) as progress:
            capacity_rps, cells = measure(
                case, options.policies, options.loads, options.seconds, logs=options.json.parent, progress=progress
            )
    except (RuntimeError, OSError) as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    console.print(table_of(cells, f"{case.config}: capacity {capacity_rps:.1f} requests/s"))
    lines, are_met = verdicts(case, cells)
    for line in lines:
        console.print(line, highlight=False)
    document = {"capacity_rps": capacity_rps, "cells": [asdict(cell) for cell in cells]}
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if are_met else 1


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())

"""Shedding over HTTP: conversations for twice what two gateways can serve, with and without coordination.

``python -m loadtests.studies.coordination [--seconds 60] [--json FILE]``

``emulated.yaml`` runs twice, slowed down so that two cores keep up: gateways that refuse alone, and gateways that give
up the same sessions. Both meet a fleet at 0.8 of its capacity that is then offered twice of it; in the middle of that
the load coordinator's process is killed. Then clients that ask again whatever they are told find out whether both
gateways say the same.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.seeds import Seeds
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.http_driver import HttpDriver, HttpRun
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.machine.systems import ROOT, System, up
from loadtests.results.analysis import analyse
from loadtests.results.metrics import ALL, MetricValue, Window
from loadtests.results.slo import ClassSlo
from loadtests.simulation.run_metrics import with_abandoned
from loadtests.studies.fidelity.metrics import completions_per_s
from loadtests.studies.fidelity.runs import MODEL
from loadtests.studies.shed_divergence import FractionWatch, least_spread
from loadtests.workloads.arrivals import FlashCrowd
from loadtests.workloads.clients import Clients, Retries
from loadtests.workloads.lengths import Constant
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.turns import ConstantTurns, ExponentialThink
from loadtests.workloads.workload import TrafficClass, Workload

PORT = 8360
BASE_URL = f"http://127.0.0.1:{PORT}"
SLO = ClassSlo(ttft_s=2.0)
TURNS = 4
RUNS_IN_S = 40.0
"""Time at 0.8 of the capacity, in which the load coordinator learns what sessions are like."""
SETTLES_S = 10.0
FLOOD_S, FLOOD_SETTLES_S, FLOOD_SESSIONS_PER_S = 30.0, 10.0, 15.0
COORDINATOR_PROCESS = "CoordinatorActor"
ALONE, TOGETHER, DEAF = "each gateway alone", "shared_fraction", "clients that don't listen"
POLICIES: Mapping[str, str] = {ALONE: "never_shed", TOGETHER: "shared_fraction"}
PATIENT = Retries(max_requests=4)
DEAF_CLIENTS = Retries(max_requests=4, backoff_s=0.05, factor=1.0, honours_retry_after=False, honours_no_retry=False)
LEAST_SPREAD, REPORTED_DIVERGENCE = "shed_spread_least", "reported_divergence"
"""The smallest ``shed_spread`` that chance leaves room for; how far apart the fractions are that gateways say that they
give up, on average over the overload."""
SHOWN = (
    "offered_rps",
    "session_goodput_fraction",
    "sends_per_sent_request",
    "goodput_fraction",
    "shed_fraction",
    "shed_spread",
    LEAST_SPREAD,
    REPORTED_DIVERGENCE,
    "same_answer_fraction",
)
CHECKS: Sequence[tuple[str, str, float | None, float | None]] = (
    (TOGETHER, "sends_per_sent_request", None, 1.2),
    (DEAF, "same_answer_fraction", 0.99, None),
    (DEAF, "shed_spread", None, 0.02),
    (DEAF, REPORTED_DIVERGENCE, None, 0.02),
)
"""Run, metric, least and most."""
LEAST_GAIN = 1.5
"""Conversations served to their end, together over alone."""
VariantMetrics = Mapping[str, MetricValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationResult:
    """What came of it.

    Args:
        capacity_rps: Calls a second that the fleet completes.
        metrics: Of each run, in its overload.
        was_killed: Whether there was a load coordinator's process to kill.
    """

    capacity_rps: float
    metrics: Mapping[str, VariantMetrics]
    was_killed: bool


def document_of(shedding: str) -> dict[str, Any]:
    """The deployment: two gateways, with a load coordinator and everything else the same."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args = document["applications"][0]["args"]
    args["engine"]["emulation"] |= {"speed": 0.15}
    args["gateway"] |= {"replicas": 2, "load_coordinator": True, "prefill_window_tokens": 8192, "num_cpus": 0.1}
    lane = {"name": "all", "pools": [pool["name"] for pool in args["pools"]], "ttft_slo_s": SLO.ttft_s}
    args["policies"] = {
        **args["policies"],
        "admission": "deadline",
        "queueing": "edf",
        "shedding": shedding,
        "length_prediction": "log2_histogram",
        "lanes": {"lanes": [lane]},
    }
    return document


def workload_of(arrivals: FlashCrowd, duration_s: float) -> Workload:
    """Conversations that begin at such times."""
    users = TrafficClass(
        name="agents",
        arrivals=arrivals,
        prompt_tokens=Constant(num_tokens=600),
        output_tokens=Constant(num_tokens=30),
        timeout_s=30.0,
        sessions=Sessions(turns=ConstantTurns(num_turns=TURNS), think=ExponentialThink(mean_s=0.5)),
    )
    return Workload(classes=(users,), duration_s=duration_s)


def _drive(workload: Workload, retries: Retries, *, seed: int, salt: str) -> HttpRun:
    """Sends a workload; what was never sent because an earlier call failed has rows too."""
    clients = Clients(workload, Seeds(seed), retries)
    endpoint = Endpoint(base_url=BASE_URL, model=MODEL)
    driver = HttpDriver(endpoint, clients, PromptTokens(ORDINARY_TOKENS, salt), workload.class_names)
    asyncio.run(driver.run())
    run = driver.result()
    return HttpRun(table=with_abandoned(run.table, clients.abandoned), health=run.health)


def _window_of(seconds: float) -> Window:
    """The overload, once it has settled."""
    return Window(from_s=RUNS_IN_S + SETTLES_S, until_s=RUNS_IN_S + seconds)


def _metrics_of(run: HttpRun, seconds: float, reported_divergence: float) -> VariantMetrics:
    """Of what was wanted in the overload."""
    window = _window_of(seconds)
    metrics = analyse(run.table, {"agents": SLO}, window)[ALL]
    least = MetricValue(value=least_spread(run.table, window), samples=metrics["shed_spread"].samples)
    return {
        **metrics,
        LEAST_SPREAD: least,
        REPORTED_DIVERGENCE: MetricValue(value=reported_divergence, samples=least.samples),
    }


def kill_coordinator(pid: int) -> bool:
    """Kills the process of the load coordinator of the deployment that ``pid`` has started; whether there is one."""
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if COORDINATOR_PROCESS in " ".join(process.cmdline()):
                process.kill()
                return True
    return False


class _Bench:
    """One measurement.

    Args:
        seconds: Length of an overload.
        logs: Folder for the deployments' logs.
        on_step: Told what is going on.
    """

    def __init__(self, seconds: float, logs: Path, on_step: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._logs = logs
        self._on_step = on_step
        self._was_killed = False

    def measure(self) -> CoordinationResult:
        """All runs."""
        metrics: dict[str, VariantMetrics] = {}
        capacity_rps = 0.0
        for name, shedding in POLICIES.items():
            path = self._logs / f"coordination-{shedding}.yaml"
            path.write_text(yaml.safe_dump(document_of(shedding), sort_keys=False))
            command = [sys.executable, "-m", "deployments.launch", str(path), "--port", str(PORT)]
            system = System(name=name, command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={})
            self._on_step(f"{name}: starting")
            with up(system, path.with_suffix(".log")) as process:
                if not capacity_rps:
                    capacity_rps = self._capacity_rps()
                metrics[name] = self._overload(name, capacity_rps, PATIENT, process)
                if shedding == POLICIES[TOGETHER]:
                    metrics[DEAF] = self._overload(DEAF, capacity_rps, DEAF_CLIENTS)
        return CoordinationResult(capacity_rps=capacity_rps, metrics=metrics, was_killed=self._was_killed)

    def _capacity_rps(self) -> float:
        self._on_step("capacity")
        flood = FlashCrowd(rate_per_s=FLOOD_SESSIONS_PER_S, factor=1.0, from_s=0.0, for_s=FLOOD_S)
        run = _drive(workload_of(flood, FLOOD_S), Retries(), seed=0, salt="flood")
        return completions_per_s(run.table, FLOOD_SETTLES_S, FLOOD_S)

    def _overload(
        self, name: str, capacity_rps: float, retries: Retries, process: "subprocess.Popen[bytes] | None" = None
    ) -> VariantMetrics:
        """0.8 and then twice the capacity; with a process, its ledger is killed half-way through."""
        self._on_step(f"{name}: twice {capacity_rps:.1f} calls/s")
        usual_per_s = 0.8 * capacity_rps / TURNS
        arrivals = FlashCrowd(rate_per_s=usual_per_s, factor=2.5, from_s=RUNS_IN_S, for_s=self._seconds)
        timer = threading.Timer(RUNS_IN_S + self._seconds / 2, self._kill, (process,))
        timer.start()
        watch = FractionWatch(BASE_URL, _window_of(self._seconds))
        try:
            with watch:
                run = _drive(workload_of(arrivals, RUNS_IN_S + self._seconds), retries, seed=1, salt=name)
        finally:
            timer.cancel()
        return _metrics_of(run, self._seconds, watch.spread)

    def _kill(self, process: "subprocess.Popen[bytes] | None") -> None:
        if process is not None:
            self._was_killed = kill_coordinator(process.pid) or self._was_killed


def _table_of(measured: CoordinationResult) -> Table:
    """A row for each metric, a column for each run."""
    title = f"emulated.yaml, two gateways: capacity {measured.capacity_rps:.1f} calls/s"
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    for name in measured.metrics:
        table.add_column(name, justify="right")
    for metric in SHOWN:
        table.add_row(metric, *(f"{metrics[metric].value:.3f}" for metrics in measured.metrics.values()))
    return table


def verdicts(measured: CoordinationResult) -> tuple[list[str], bool]:
    """A line for each check, and whether all are met."""
    sessions = "session_goodput_fraction"
    together, alone = (measured.metrics[name][sessions].value for name in (TOGETHER, ALONE))
    gain = together / alone if alone else float("inf")
    checks = [(f"{sessions}, {TOGETHER} over {ALONE}", gain, f">= {LEAST_GAIN:g}", gain >= LEAST_GAIN)]
    for name, metric, least, most in CHECKS:
        value = measured.metrics[name][metric].value
        is_met = (least is None or value >= least) and (most is None or value <= most)
        limit = f">= {least:g}" if most is None else f"<= {most:g}"
        checks.append((f"{metric}, {name}", value, limit, is_met))
    killed = float(measured.was_killed)
    checks.append(("the load coordinator was killed in the middle", killed, ">= 1", measured.was_killed))
    lines = [f"{name}: {value:.3g}, check {limit}: {'met' if ok else 'MISSED'}" for name, value, limit, ok in checks]
    return lines, all(ok for *_, ok in checks)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.coordination",
        description=(__doc__ or "").split("\n\n")[0] + "\n\n"
        "exit status: 0 all checks are met, 1 one is missed, 2 a deployment did not start.\n"
        "Needs the machine to itself for eight minutes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each overload (default: 60)")
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "coordination.json", help="where the metrics go")
    options = parser.parse_args(arguments)
    if not 2 * SETTLES_S <= options.seconds <= 600:
        parser.error(f"--seconds: got {options.seconds:g}; allowed: from {2 * SETTLES_S:g} to 600")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and the checks, writes the JSON."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("starting", total=6)
            bench = _Bench(
                options.seconds,
                options.json.parent,
                lambda step: progress.update(task, advance=1, description=step),
            )
            measured = bench.measure()
    except (RuntimeError, OSError) as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    console.print(_table_of(measured))
    lines, are_met = verdicts(measured)
    for line in lines:
        console.print(line, highlight=False)
    values = {name: {metric: each[metric].value for metric in SHOWN} for name, each in measured.metrics.items()}
    options.json.write_text(json.dumps({"capacity_rps": measured.capacity_rps, "runs": values}, indent=2) + "\n")
    return 0 if are_met else 1


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())

"""Hedging on real vLLM: two replicas, one of which is slow now and then, with second attempts and without.

``python -m loadtests.studies.hedging_vllm [--rounds 2] [--seconds 72] [--json FILE]``

Both replicas are started once. The same plan, with the same times at which the first replica's engine is slow, is then
run with ``no_hedge`` and with ``slowdown`` in turn; the gateway changes its policy while it runs. Ratios are between
runs of the same plans. Beside what hedging is worth it is held against that it costs no more than it may, that every
attempt runs on the replica that it was sent to, and that nothing is left behind.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress

from cluster.seeds import Seeds
from cluster.sim.faults import Fault
from engines.faults import FaultKind
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.http_driver import HttpRun, drive
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.systems import ROOT, System, up
from loadtests.scenario.episodes import Episodes
from loadtests.studies.fidelity.runs import MODEL
from loadtests.studies.hedging_metrics import BUDGET_FRACTION, WITH, WITHOUT, Calm, HedgingCell, cell_of
from loadtests.studies.hedging_verdicts import table_of, total, verdicts
from loadtests.studies.slow_engine import slowed
from loadtests.watch.gateway_page import MetricsPage, TookTooLong, wait_for
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.clients import Clients
from loadtests.workloads.lengths import Constant, Uniform
from loadtests.workloads.workload import TrafficClass, Workload
from policies.errors import ConfigError
from policies.views import Role

CONFIG = ROOT / "deployments" / "configs" / "unified-vllm.yaml"
PORT = 8370
URL = f"http://127.0.0.1:{PORT}"
POOL, REPLICAS = "unified", 2
PARAMS: dict[str, dict[str, Any]] = {
    WITHOUT: {},
    WITH: {"min_samples": 50, "min_delay_s": 0.1, "max_slowdown": 10.0, "budget_fraction": BUDGET_FRACTION},
}
REQUESTS_PER_S, SHORTEST_TOKENS, LONGEST_TOKENS, OUTPUT_TOKENS = 7.0, 128, 896, 8
LEARNS_S = 8.0
"""In which nobody is slow, and the policy learns what is usual; not measured."""
SLOW = Episodes(kind=FaultKind.SLOW, role=Role.UNIFIED, share_of_time=0.1, for_s=2.0, factor=20.0)
SETTLE_PATIENCE_S = 30.0
RELOAD_PATIENCE_S = 120.0
AT_REST = f"{REPLICAS} replicas at rest"


def document_of(hedging: str) -> dict[str, Any]:
    """The deployment with a hedging policy, which the gateway may change while it runs."""
    document: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    application = document["applications"][0]
    args = application["args"]
    args["engine"]["profile"] = "vllm-cpu-tiny"
    args["pools"] = [{"name": POOL, "role": "unified", "replicas": REPLICAS, "num_cpus": 0.5}]
    policies = {"hedging": {"name": hedging, "params": PARAMS[hedging]}}
    application["deployments"] = [{"name": "gateway", "user_config": {"policies": policies}}]
    return document


def workload_of(duration_s: float) -> Workload:
    """Prompts of very different lengths, and short answers."""
    users = TrafficClass(
        name="users",
        arrivals=Poisson(rate_per_s=REQUESTS_PER_S),
        prompt_tokens=Uniform(least_tokens=SHORTEST_TOKENS, most_tokens=LONGEST_TOKENS),
        output_tokens=Constant(num_tokens=OUTPUT_TOKENS),
        timeout_s=60.0,
    )
    return Workload(classes=(users,), duration_s=duration_s)


def faults_of(seed: int, seconds: float) -> list[Fault]:
    """When the first replica is slow: after the policy has learned, and often enough to be seen."""
    found = SLOW.faults(1, seconds, Seeds(seed))
    return [
        Fault(
            kind=each.kind, at_s=LEARNS_S + each.at_s, for_s=each.for_s, role=each.role, replica=0, factor=each.factor
        )
        for each in found
    ]


class Bench:
    """One measurement.

    Args:
        rounds: Plans.
        seconds: How long each is measured.
        logs: Folder for the deployment's log and configuration.
        on_step: Told what is going on.
    """

    def __init__(self, rounds: int, seconds: float, logs: Path, on_step: Callable[[str], None]) -> None:
        self._rounds = rounds
        self._seconds = seconds
        self._path = logs / "hedging-vllm.yaml"
        self._on_step = on_step

    def measure(self) -> list[HedgingCell]:
        """All runs: both policies for each plan, the one that comes first changing from plan to plan.

        Raises:
            RuntimeError: The deployment does not start, or does not change its policy.
        """
        self._write(WITHOUT)
        command = [sys.executable, "-m", "deployments.launch", str(self._path), "--port", str(PORT)]
        system = System(
            name="hedging-vllm", command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={}
        )
        self._on_step("starting two engines")
        cells: list[HedgingCell] = []
        with up(system, self._path.with_suffix(".log")) as process:
            self._settled(process, has_replicas, f"{REPLICAS} replicas")
            self._drive(workload_of(5.0), 0, "warm-up")
            for seed in range(1, self._rounds + 1):
                for policy in (WITHOUT, WITH) if seed % 2 else (WITH, WITHOUT):
                    self._on_step(f"{policy}: plan {seed} of {self._rounds}")
                    self._reload(policy)
                    cells.append(self._run(policy, seed, process))
        return cells

    def _run(self, policy: str, seed: int, process: "subprocess.Popen[bytes]") -> HedgingCell:
        calm = Calm()
        before = self._settled(process, lambda page: calm(page) and has_replicas(page), AT_REST)
        slow_id, pid = min(_pids(before).items())
        faults = faults_of(seed, self._seconds)
        foreign = ForeignLoad(process.pid)
        with slowed(pid, faults) if faults else nullcontext():
            run = self._drive(workload_of(LEARNS_S + self._seconds), seed, f"{policy}/{seed}")
        foreign_fraction = foreign.fraction()
        try:
            after = self._settled(process, Calm(), AT_REST)
        except TookTooLong as late:  # what is left behind is a metric of its own
            after = late.page
        return cell_of(
            policy,
            seed,
            run,
            after.since(before),
            slow_id=slow_id,
            from_s=LEARNS_S,
            left_open=int(after.sum("spillway_requests_open")),
            kv_left=after.sum("spillway_replica_kv_cache_usage"),
            episodes=len(faults),
            foreign_fraction=foreign_fraction,
        )

    def _drive(self, workload: Workload, seed: int, salt: str) -> HttpRun:
        """No two salts share any text, so that no run finds prompts of another one in a cache."""
        endpoint = Endpoint(base_url=URL, model=MODEL)
        clients, prompts = Clients(workload, Seeds(seed)), PromptTokens(ORDINARY_TOKENS, salt)
        return asyncio.run(drive(endpoint, clients, prompts, workload.class_names))

    def _settled(
        self, process: "subprocess.Popen[bytes]", condition: Callable[[MetricsPage], bool], what: str
    ) -> MetricsPage:
        return wait_for(URL, process, condition, SETTLE_PATIENCE_S, what)

    def _write(self, policy: str) -> None:
        self._path.write_text(yaml.safe_dump(document_of(policy), sort_keys=False))

    def _reload(self, policy: str) -> None:
        self._write(policy)
        command = [sys.executable, "-m", "deployments.reload", str(self._path), "--port", str(PORT)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RELOAD_PATIENCE_S, check=False)
        if done.returncode:
            raise RuntimeError(f"the gateway did not change to {policy}: {done.stderr.strip()}")


def has_replicas(page: MetricsPage) -> bool:
    """Whether the gateway knows all of them."""
    return len(_pids(page)) == REPLICAS


def _pids(page: MetricsPage) -> dict[str, int]:
    """The process of each replica, by its id."""
    return {each: int(pid) for pid in page.by("pid", "spillway_replica_info") for each in _replicas_of(page, pid)}


def _replicas_of(page: MetricsPage, pid: str) -> dict[str, float]:
    return page.by("replica", "spillway_replica_info", pid=pid)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.hedging_vllm",
        description=(__doc__ or "").split("\n\n")[0] + "\n\n"
        "exit status: 0 all checks are met, 1 one is missed, 2 the deployment did not start or did not come to rest,\n"
        "130 interrupted, or ended by SIGTERM.\n"
        "Needs two cores to itself for eight minutes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=2, choices=range(1, 21), metavar="1..20", help="plans (default: 2)"
    )
    parser.add_argument("--seconds", type=float, default=72.0, help="how long each is measured (default: 72)")
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "hedging-vllm.json", help="where the metrics go")
    options = parser.parse_args(arguments)
    if not LEARNS_S <= options.seconds <= 600:
        parser.error(f"--seconds: got {options.seconds:g}; allowed: from {LEARNS_S:g} to 600")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and the checks, writes the JSON."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an engine that is stopped has to go on, as on Ctrl-C
    console = Console(width=None if sys.stdout.isatty() else 120)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("starting", total=2 * options.rounds + 1)
            bench = Bench(
                options.rounds,
                options.seconds,
                options.json.parent,
                lambda step: progress.update(task, advance=1, description=step),
            )
            cells = bench.measure()
    except KeyboardInterrupt:
        console.print("[red]interrupted[/]")
        return 130
    except (ConfigError, RuntimeError, OSError) as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    episodes = f"{total(cells, WITH, 'episodes'):.0f} times for {SLOW.for_s:g} s"
    console.print(table_of(cells, f"two replicas, one of them {SLOW.factor:g} times as slow {episodes}"))
    foreign = max(cell.foreign_fraction for cell in cells)
    console.print(f"other work took up to {foreign:.0%} of the machine", highlight=False)
    lines, are_met = verdicts(cells)
    for line in lines:
        console.print(line, highlight=False)
    options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=2) + "\n")
    return 0 if are_met else 1


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())

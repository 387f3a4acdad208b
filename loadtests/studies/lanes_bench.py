"""Lanes on real vLLM: short and long prompts on two replicas, as one pool and as two lanes.

``python -m loadtests.studies.lanes_bench [--rounds 3] [--seconds 40] [--load 0.7] [--json FILE]``

The same two engines serve the same plans three times: as one pool placed by the power of two choices on requests (what
Ray Serve does), as one pool placed by least work left, and as a lane for short prompts and one for long ones. The rate
is a share of what the first of them completes when far more goes in. Ratios are between runs of the same plan.
"""

import argparse
import asyncio
import copy
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.seeds import Seeds
from cluster.sim.run_table import OUTCOMES, RunTable
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.http_driver import HttpRun, drive
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.marked_section import write_between_marks
from loadtests.machine.systems import ROOT, System, up
from loadtests.studies.fidelity.metrics import completions_per_s
from loadtests.studies.fidelity.runs import MODEL
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.clients import Clients
from loadtests.workloads.lengths import Constant
from loadtests.workloads.workload import TrafficClass, Workload
from routing.request.effects import OutcomeKind

CONFIG = ROOT / "deployments" / "configs" / "lanes-vllm.yaml"
BASELINE, STRONG, LANES = "one pool, power of two", "one pool, least work left", "two lanes"
VARIANTS = (BASELINE, STRONG, LANES)
PORT = 8340
SHORT, LONG = "short", "long"
SHORT_TOKENS, LONG_TOKENS, OUTPUT_TOKENS = 20, 4000, 16
LONG_SHARE = 0.02
"""Of the requests. One of the two replicas is for them, so they may not be much more than half of the work."""
FLOOD_RPS, FLOOD_S, FLOOD_SETTLES_S = 120.0, 20.0, 8.0
MOST_FOREIGN_FRACTION = 0.05
CHECKS = {"short TTFT p99": 2.0, "throughput": 0.9}
"""How many times better, and how much of it at least; both against the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesCell:
    """One run of one plan.

    Args:
        variant: How the replicas were used.
        seed: Of the plan.
        requests: Sent.
        completed: Share that was answered in full.
        short_ttft_p50_s: Of short prompts, from the scheduled time.
        short_ttft_p99_s: Likewise.
        long_ttft_p50_s: Of long prompts.
        long_ttft_p99_s: Likewise.
        tokens_per_s: Prompt and output tokens of completed requests until the last of them ended.
        foreign_fraction: Share of all cores' time that other work took meanwhile.
    """

    variant: str
    seed: int
    requests: int
    completed: float
    short_ttft_p50_s: float
    short_ttft_p99_s: float
    long_ttft_p50_s: float
    long_ttft_p99_s: float
    tokens_per_s: float
    foreign_fraction: float

    @property
    def is_valid(self) -> bool:
        """Whether it measured the replicas and not something else."""
        return self.completed == 1.0 and self.foreign_fraction <= MOST_FOREIGN_FRACTION


def document_of(variant: str) -> dict[str, Any]:
    """The configuration of a variant: the file's, or its two pools as one."""
    document: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    if variant == LANES:
        return document
    document = copy.deepcopy(document)
    args = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified", "replicas": len(args["pools"]), "num_cpus": 0.5}]
    balancing = "power_of_two" if variant == BASELINE else "least_work_left"
    args["policies"] = {"planning": "always_unified", "balancing": balancing}
    return document


def _workload_of(requests_per_s: float, duration_s: float) -> Workload:
    """Short prompts, and now and then a long one."""
    return Workload(
        classes=(
            _users(SHORT, SHORT_TOKENS, (1 - LONG_SHARE) * requests_per_s),
            _users(LONG, LONG_TOKENS, LONG_SHARE * requests_per_s),
        ),
        duration_s=duration_s,
    )


def _users(name: str, prompt_tokens: int, rate_per_s: float) -> TrafficClass:
    return TrafficClass(
        name=name,
        arrivals=Poisson(rate_per_s=rate_per_s),
        prompt_tokens=Constant(num_tokens=prompt_tokens),
        output_tokens=Constant(num_tokens=OUTPUT_TOKENS),
        timeout_s=120.0,
    )


def _drive(workload: Workload, seed: int, salt: str, until_s: float = math.inf) -> HttpRun:
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{PORT}", model=MODEL)
    clients = Clients(workload, Seeds(seed))
    prompts = PromptTokens(ORDINARY_TOKENS, salt)
    return asyncio.run(drive(endpoint, clients, prompts, workload.class_names, until_s=until_s))


def _cell(variant: str, seed: int, table: RunTable, foreign_fraction: float) -> LanesCell:
    completed = table.outcome == OUTCOMES.index(OutcomeKind.COMPLETED.value)
    ttft_s = table.first_token_s - table.scheduled_s
    of_class = [ttft_s[completed & (table.traffic_class == index)] for index in range(2)]
    tokens = (table.prompt_tokens + table.output_tokens)[completed].sum()
    return LanesCell(
        variant=variant,
        seed=seed,
        requests=len(table),
        completed=float(completed.mean()),
        short_ttft_p50_s=_quantile(of_class[0], 0.5),
        short_ttft_p99_s=_quantile(of_class[0], 0.99),
        long_ttft_p50_s=_quantile(of_class[1], 0.5),
        long_ttft_p99_s=_quantile(of_class[1], 0.99),
        tokens_per_s=float(tokens / table.end_s[completed].max()),
        foreign_fraction=foreign_fraction,
    )


def _quantile(values: "np.ndarray[Any, Any]", quantile: float) -> float:
    return float(np.quantile(values, quantile)) if len(values) else math.nan


def _measure(rounds: int, seconds: float, load: float, logs: Path, progress: Progress) -> tuple[float, list[LanesCell]]:
    """All variants in turn.

    Args:
        rounds: Plans for each.
        seconds: How long requests arrive in each run.
        load: Share of the baseline's capacity.
        logs: Folder for the deployments' logs.
        progress: Moves on with every run.

    Returns:
        The rate of requests per second, and the runs.

    Raises:
        RuntimeError: A deployment does not start; the message names its log.
    """
    task = progress.add_task("starting", total=len(VARIANTS) * (rounds + 1))
    rate_per_s, cells = math.nan, []
    for variant in VARIANTS:
        path = logs / f"lanes-bench-{VARIANTS.index(variant)}.yaml"
        path.write_text(yaml.safe_dump(document_of(variant), sort_keys=False))
        command = [sys.executable, "-m", "deployments.launch", str(path), "--port", str(PORT)]
        system = System(name=variant, command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={})
        progress.update(task, description=f"{variant}: starting")
        with up(system, path.with_suffix(".log")) as process:
            _drive(_workload_of(8.0, 5.0), seed=0, salt="warm-up")
            if variant == BASELINE:
                progress.update(task, description=f"{variant}: capacity")
                flood = _drive(_workload_of(FLOOD_RPS, FLOOD_S), seed=0, salt="flood", until_s=FLOOD_S)
                rate_per_s = load * completions_per_s(flood.table, FLOOD_SETTLES_S, FLOOD_S)
                _drive(_workload_of(1.0, 2.0), seed=0, salt="until the flood is over")
            for seed in range(1, rounds + 1):
                progress.update(task, advance=1, description=f"{variant}: plan {seed} of {rounds}")
                foreign = ForeignLoad(process.pid)
                run = _drive(_workload_of(rate_per_s, seconds), seed=seed, salt=f"{variant}/{seed}")
                cells.append(_cell(variant, seed, run.table, foreign.fraction()))
        progress.update(task, advance=1)
    return rate_per_s, cells


def ratios(cells: Sequence[LanesCell], variant: str, metric_value: str) -> list[float]:
    """A metric of a variant over the baseline's, plan by plan."""
    baseline = {cell.seed: getattr(cell, metric_value) for cell in cells if cell.variant == BASELINE}
    return [getattr(cell, metric_value) / baseline[cell.seed] for cell in cells if cell.variant == variant]


def table_of(cells: Sequence[LanesCell]) -> Table:
    """A row for each variant; medians over plans."""
    table = Table(title="short and long prompts on two vLLM replicas", title_justify="left")
    for column in (
        "variant",
        "short TTFT p50",
        "short TTFT p99",
        "long TTFT p50",
        "long TTFT p99",
        "tokens/s",
        "valid",
    ):
        table.add_column(column, justify="left" if column in ("variant", "valid") else "right")
    for variant in VARIANTS:
        own = [cell for cell in cells if cell.variant == variant]
        if not own:
            continue
        times = [f"{_milliseconds(own, kind, p)} ms" for kind in (SHORT, LONG) for p in ("p50", "p99")]
        tokens = f"{np.median([cell.tokens_per_s for cell in own]):,.0f}"
        table.add_row(variant, *times, tokens, f"{sum(cell.is_valid for cell in own)} of {len(own)}")
    return table


def markdown_of(cells: Sequence[LanesCell]) -> str:
    """The same for a document, with what lanes are worth beside it."""
    head = "| replicas used as | short TTFT p50 / p99 | long TTFT p50 / p99 | tokens/s |\n|---|---:|---:|---:|\n"
    rows = []
    for variant in VARIANTS:
        own = [cell for cell in cells if cell.variant == variant]
        short, long = (" / ".join(_milliseconds(own, kind, p) for p in ("p50", "p99")) for kind in (SHORT, LONG))
        tokens = f"{np.median([cell.tokens_per_s for cell in own]):,.0f}"
        rows.append(f"| {variant} | {short} ms | {long} ms | {tokens} |\n")
    lines, _ = verdicts(cells)
    return head + "".join(rows) + "\n" + "; ".join(line.rpartition(";")[0] for line in lines) + ".\n"


def _milliseconds(cells: Sequence[LanesCell], kind: str, percentile: str) -> str:
    """The median over plans of a time to the first token."""
    return f"{1000 * np.median([getattr(cell, f'{kind}_ttft_{percentile}_s') for cell in cells]):,.0f}"


def verdicts(cells: Sequence[LanesCell]) -> tuple[list[str], bool]:
    """A line for each check, and whether all are met."""
    better = [1 / ratio for ratio in ratios(cells, LANES, "short_ttft_p99_s")]
    kept = ratios(cells, LANES, "tokens_per_s")
    lines, are_met = [], True
    for name, values, unit in (("short TTFT p99", better, "times better"), ("throughput", kept, "of the baseline's")):
        median, is_met = float(np.median(values)), float(np.median(values)) >= CHECKS[name]
        are_met = are_met and is_met
        spread = f"{min(values):.2f} to {max(values):.2f}"
        word = "met" if is_met else "missed"
        lines.append(f"{name}: {median:.2f} ({spread}) {unit}; check {CHECKS[name]:g}: {word}")
    return lines, are_met


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.lanes_bench",
        description=(__doc__ or "").split("\n\n")[0] + "\n\n"
        "exit status: 0 both checks are met, 1 one is missed, 2 a deployment did not start or no run was valid.\n"
        "Takes about 12 minutes on two cores, and needs them to itself.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=3, choices=range(1, 21), metavar="1..20", help="plans (default: 3)"
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="how long requests arrive in a run (default: 40)")
    parser.add_argument("--load", type=float, default=0.7, help="share of the baseline's capacity (default: 0.7)")
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "lanes-bench.json", help="where the metrics go")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/explanation/lanes.md")
    options = parser.parse_args(arguments)
    for name, allowed in (("seconds", 600.0), ("load", 1.0)):
        if not 0 < getattr(options, name) <= allowed:
            parser.error(f"--{name}: got {getattr(options, name):g}; allowed: above 0, at most {allowed:g}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and the checks, writes the JSON."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Progress(console=Console(stderr=True)) as progress:
            rate_per_s, cells = _measure(options.rounds, options.seconds, options.load, options.json.parent, progress)
    except (RuntimeError, OSError) as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    console.print(table_of(cells))
    console.print(f"{rate_per_s:.1f} requests/s, {LONG_SHARE:.0%} of them of {LONG_TOKENS:,} tokens", highlight=False)
    lines, are_met = verdicts(cells)
    for line in lines:
        console.print(line, highlight=False)
    document = {"rate_per_s": rate_per_s, "cells": [asdict(cell) for cell in cells]}
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    if options.write_docs:
        write_between_marks(ROOT / "docs" / "explanation" / "lanes.md", "lanes", markdown_of(cells))
    if not any(cell.is_valid for cell in cells):
        return 2
    return 0 if are_met else 1


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())

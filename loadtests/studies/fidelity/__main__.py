"""Runs the same open-loop plans for real and in the simulator, and prints how far the simulator is off.

Parts:

vllm       one replica of the tiny model on real vLLM; its engine has core 0 to itself, everything else core 1
handoff    prefill and decode replicas on real vLLM; two engines, gateway and client share two cores, so: no goals
emulated   4 prefill and 4 decode replicas of the emulated engine, in real time
balancers  the emulated replicas under five balancers: does the simulator rank them as reality does?

In each, the capacity is measured first, with far more requests than can be served; then three workloads run at 0.3, 0.6
and 0.85 of it, for real over HTTP and in the simulator. None of them is on the calibration's grid. The table says
whether a goal is met or missed; the exit status does not: it is 0 when everything ran, 2 when something did not start
or no run was valid.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engines.model.profile import load_profile
from loadtests.machine.marked_section import write_between_marks
from loadtests.machine.systems import ROOT, provenance
from loadtests.studies.fidelity.metrics import Pair
from loadtests.studies.fidelity.plans import BURSTY, LARGE, LOADS, RAGGED, TINY, WORKLOADS
from loadtests.studies.fidelity.rows import FidelityRow, Ranking, Summary, ranking_of, rows_of, summaries_of
from loadtests.studies.fidelity.runs import Capacity, Rig, Target, rig_of
from loadtests.studies.fidelity.tables import (
    RANKING,
    RESULTS,
    SUMMARY,
    VALIDITY,
    markdown_table,
    ranking_cells,
    result_cells,
    rich_table,
    summary_cells,
    validity_cells,
)
from policies.errors import ConfigError

CONFIGS = ROOT / "deployments" / "configs"
DOCUMENT = ROOT / "docs" / "reports" / "fidelity.md"
PARTS = ("vllm", "handoff", "emulated", "balancers")
VLLM_PARTS = ("vllm", "handoff")
BALANCERS = ("least_work_left", "power_of_two", "power_of_two_by_work", "random", "round_robin")
BALANCERS_LOAD = 0.85
RANKED_METRICS = ("TTFT p99", "E2E p99")
ROUNDS = {"vllm": 3, "handoff": 1, "emulated": 2, "balancers": 3}
SECONDS = 20.0
FLOOD_SECONDS = 20.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """How much is run.

    Args:
        parts: Of ``PARTS``.
        rounds: For each part.
        seconds: How long requests arrive in each run.
        flood_seconds: How long the flood lasts that measures a capacity.
        loads: Shares of the capacity.
        balancers: What is ranked.
        profile: Of the vLLM engines, by name or path; ``None`` takes the one that comes with spillway.
    """

    parts: Sequence[str]
    rounds: dict[str, int]
    seconds: float = SECONDS
    flood_seconds: float = FLOOD_SECONDS
    loads: Sequence[float] = LOADS
    balancers: Sequence[str] = BALANCERS
    profile: str | None = None

    def target(self, part: str) -> Target:
        """What is deployed for a part."""
        target = _targets()[part]
        return replace(target, profile=self.profile) if self.profile and part in VLLM_PARTS else target

    @property
    def steps(self) -> int:
        """Lines that are told while it runs."""
        plans = len(WORKLOADS) * len(self.loads)
        each = {part: 1 + len(set(map(_capacity_of, WORKLOADS))) + self.rounds[part] * plans for part in PARTS}
        each["balancers"] = len(self.balancers) * (1 + self.rounds["balancers"]) + 1
        return sum(each[part] for part in self.parts)


@dataclass(slots=True)
class FidelityFindings:
    """What has been found so far."""

    pairs: list[Pair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[FidelityRow]:
        """Rows of the table, part by part."""
        goals = {target.part: target.has_goals for target in _targets().values()}
        return [
            row
            for part in dict.fromkeys(pair.part for pair in self.pairs)
            for row in rows_of([pair for pair in self.pairs if pair.part == part], has_goals=goals.get(part, False))
        ]

    def summaries(self) -> list[Summary]:
        """Over workloads and loads."""
        return summaries_of(self.rows())

    def rankings(self) -> list[Ranking]:
        """Of the balancers, where they ran."""
        ranked = [pair for pair in self.pairs if pair.part == "balancers"]
        return [ranking_of(ranked, metric) for metric in RANKED_METRICS] if ranked else []


def _targets() -> dict[str, Target]:
    """What can be deployed, by part."""
    emulated = CONFIGS / "emulated.yaml"
    return {
        "vllm": Target(
            part="vllm",
            config=CONFIGS / "unified-vllm.yaml",
            profile="vllm-cpu-tiny",
            port=8310,
            shape=TINY,
            pins=True,
        ),
        "handoff": Target(
            part="handoff",
            config=CONFIGS / "local-vllm.yaml",
            profile="vllm-cpu-tiny",
            port=8320,
            shape=TINY,
            has_goals=False,
        ),
        "emulated": Target(part="emulated", config=emulated, profile="h100-llama3-8b", port=8330, shape=LARGE),
        "balancers": Target(part="balancers", config=emulated, profile="h100-llama3-8b", port=8330, shape=LARGE),
    }


def run(study: _Study, logs: Path, findings: FidelityFindings, tell: Tell) -> None:
    """Runs a study; what it finds is in ``findings`` as soon as it is found.

    Args:
        study: How much is run.
        logs: Folder for the deployments' logs.
        findings: Is filled.
        tell: Told what begins.

    Raises:
        ConfigError: A profile or a configuration that can't be used.
        RuntimeError: A deployment did not start.
    """
    for part in study.parts:
        target = study.target(part)
        if part == "balancers":
            _run_balancers(study, target, logs, findings, tell)
        else:
            _run_plans(study, target, logs, findings, tell)


def _run_plans(study: _Study, target: Target, logs: Path, findings: FidelityFindings, tell: Tell) -> None:
    tell(f"{target.part}: starting {target.config.name}")
    with rig_of(target, logs) as rig:
        _note_rig(rig, findings)
        capacities = {}
        for name in dict.fromkeys(map(_capacity_of, WORKLOADS)):
            tell(f"{target.part}: capacity, {name}")
            capacities[name] = rig.capacity(name, study.flood_seconds)
            _note_capacity(target.part, name, capacities[name], findings)
        for seed in range(1, 1 + study.rounds[target.part]):
            for name in WORKLOADS:
                for load in study.loads:
                    tell(f"{target.part}: round {seed}, {name} at {load:g}")
                    capacity_rps = capacities[_capacity_of(name)].measured_rps
                    findings.pairs.append(rig.compare(name, load, capacity_rps, seed=seed, seconds=study.seconds))


def _run_balancers(study: _Study, target: Target, logs: Path, findings: FidelityFindings, tell: Tell) -> None:
    """The first balancer's capacity is everybody's, so that all of them meet the same requests."""
    capacity: Capacity | None = None
    for balancer in study.balancers:
        tell(f"{target.part}: starting with {balancer}")
        with rig_of(target, logs, balancer=balancer) as rig:
            if capacity is None:
                tell(f"{target.part}: capacity with {balancer}")
                capacity = rig.capacity(RAGGED, study.flood_seconds)
                _note_rig(rig, findings)
                _note_capacity(target.part, RAGGED, capacity, findings)
            for seed in range(1, 1 + study.rounds[target.part]):
                tell(f"{target.part}: {balancer}, round {seed}")
                pair = rig.compare(
                    RAGGED, BALANCERS_LOAD, capacity.measured_rps, seed=seed, seconds=study.seconds, variant=balancer
                )
                findings.pairs.append(pair)


def _capacity_of(workload: str) -> str:
    """Which workload's capacity is meant: bursts bring the same requests at other times."""
    return RAGGED if workload == BURSTY else workload


def _note_rig(rig: Rig, findings: FidelityFindings) -> None:
    part = rig.target.part
    where = "nothing is pinned" if rig.pinned is None else str(rig.pinned)
    findings.notes.append(f"{part}: {where}")
    findings.notes.append(
        f"{part}: a small request takes {1e3 * rig.hop_s:.1f} ms more than its engine; the simulator has it as "
        f"{1e3 * rig.fleet.ingress_delay_s:.2f} ms before the dispatcher and {1e3 * rig.fleet.network_delay_s:.2f} ms "
        f"for each message, and {1e3 * rig.fleet.gateway_request_s:.2f} ms of the gateway's processor"
    )
    if rig.front.request_s:
        findings.notes.append(
            f"{part}: the front end's processor takes {1e3 * rig.front.request_s:.1f} ms for a small request and "
            f"{1e3 * rig.front.chunk_s:.2f} ms for a chunk of a stream"
        )


def _note_capacity(part: str, name: str, capacity: Capacity, findings: FidelityFindings) -> None:
    findings.notes.append(
        f"{part}: capacity, {name}: {capacity.measured_rps:.1f} requests/s measured, "
        f"{capacity.simulated_rps:.1f} simulated ({capacity.simulated_rps / capacity.measured_rps - 1:+.0%})"
    )


def print_findings(findings: FidelityFindings, console: Console) -> None:
    """Tables for a terminal."""
    rows = findings.rows()
    for part in dict.fromkeys(row.part for row in rows):
        title = f"{part}: medians over {max(row.rounds for row in rows if row.part == part)} rounds"
        console.print(rich_table(title, RESULTS, result_cells(row for row in rows if row.part == part)))
    console.print(rich_table("over workloads and loads", SUMMARY, summary_cells(findings.summaries())))
    rankings = findings.rankings()
    if rankings:
        console.print(rich_table("balancers", RANKING, ranking_cells(rankings)))
    console.print(rich_table("were the runs valid?", VALIDITY, validity_cells(findings.pairs)))
    for note in findings.notes:
        console.print(note, highlight=False, markup=False)


def as_markdown(findings: FidelityFindings) -> str:
    """The same for the documentation, without the line of every run."""
    rows = findings.rows()
    invalid = sum(bool(pair.invalid_because) for pair in findings.pairs)
    origin = provenance()
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    sections = [
        f"{origin['date']}, {origin['cores']} cores, {versions}. {len(findings.pairs)} runs, {invalid} invalid.",
        markdown_table(SUMMARY, summary_cells(findings.summaries())),
    ]
    if findings.rankings():
        sections.append(markdown_table(RANKING, ranking_cells(findings.rankings())))
    for part in dict.fromkeys(row.part for row in rows):
        sections += [f"### {part}", markdown_table(RESULTS, result_cells(row for row in rows if row.part == part))]
    sections.append("\n".join(f"- {note}" for note in findings.notes))
    return "\n\n".join(sections)


def as_document(findings: FidelityFindings) -> dict[str, Any]:
    """Everything, for other programs."""
    return {
        "provenance": provenance(),
        "notes": findings.notes,
        "pairs": [asdict(pair) | {"invalid_because": pair.invalid_because} for pair in findings.pairs],
        "rows": [asdict(row) | {"verdict": row.verdict} for row in findings.rows()],
        "summaries": [asdict(each) for each in findings.summaries()],
        "rankings": [asdict(each) for each in findings.rankings()],
    }


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="which parts (default: all)")
    defaults = ", ".join(f"{part} {rounds}" for part, rounds in ROUNDS.items())
    parser.add_argument("--rounds", type=_positive(int), help=f"plans for each load (default: {defaults})")
    parser.add_argument(
        "--seconds", type=_positive(float), help=f"how long requests arrive in each run (default: {SECONDS:g})"
    )
    parser.add_argument("--profile", help="the vLLM parts' profile, by name or path (default: vllm-cpu-tiny)")
    parser.add_argument("--quick", action="store_true", help="one round at one load, two balancers: does it run?")
    parser.add_argument(
        "--json", type=Path, default=ROOT / ".run" / "fidelity.json", help="where the metrics are written"
    )
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/reports/fidelity.md")
    return parser.parse_args(arguments)


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"got {text}; allowed: above 0")
        return value

    return parse


def study_of(options: argparse.Namespace) -> _Study:
    """What the command line asks for."""
    rounds = dict.fromkeys(PARTS, 1) if options.quick else ROUNDS
    rounds = dict.fromkeys(PARTS, options.rounds) if options.rounds else rounds
    if options.quick:
        return _Study(
            parts=options.part,
            rounds=rounds,
            seconds=options.seconds or 8.0,
            flood_seconds=8.0,
            loads=LOADS[1:2],
            balancers=("least_work_left", "random"),
            profile=options.profile,
        )
    return _Study(parts=options.part, rounds=rounds, seconds=options.seconds or SECONDS, profile=options.profile)


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[Tell]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, completed=-1)

        def tell(line: str) -> None:
            progress.update(task, advance=1, description=line)
            if not console.is_terminal:
                console.print(line, highlight=False)

        yield tell


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """The deployment that is up goes down with the comparison, however that is ended."""
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the tables and writes the JSON. Interrupted, it prints what it has."""
    options = _parse(arguments)
    console = Console(width=170 if not sys.stdout.isatty() else None)
    study, findings = study_of(options), FidelityFindings()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    status = 0
    try:
        for part in study.parts:
            load_profile(study.target(part).profile)
        with _progress(console, study.steps) as tell:
            run(study, options.json.parent, findings, tell)
    except KeyboardInterrupt:
        console.print("[red]interrupted[/]: what follows is what there was by then")
        status = 130
    except (ConfigError, RuntimeError, OSError) as error:
        console.print(f"[red]{error}[/]", highlight=False)
        status = 2
    if not findings.pairs:
        return status or 2
    print_findings(findings, console)
    options.json.write_text(json.dumps(as_document(findings), indent=2) + "\n")
    console.print(f"metrics: {options.json}", highlight=False)
    if options.write_docs and status == 0:
        write_between_marks(DOCUMENT, "metrics", as_markdown(findings))
    is_invalid_throughout = all(pair.invalid_because for pair in findings.pairs)
    return status or (2 if is_invalid_throughout else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    with suppress(BrokenPipeError):
        sys.exit(main())

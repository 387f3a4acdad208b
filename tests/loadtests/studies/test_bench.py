"""The benchmark's arithmetic: medians over rounds, ratios to the baseline's median."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deployments.launch import environment
from deployments.local.inner_ports import InnerPorts
from loadtests.machine.cpu_by_process import ms_per_1k_tokens
from loadtests.studies.bench import BASELINE, OUR_SETTINGS, BenchCell, passes, summarize, systems


def cell(system: str, repeat: int, tokens_per_s: float, ttft_p50_ms: float = 10.0, number: int = 0) -> BenchCell:
    return BenchCell(
        system=system,
        number=number,
        round=repeat,
        streams=8,
        ttft_p50_ms=ttft_p50_ms,
        ttft_p99_ms=20.0,
        tpot_p50_ms=4.0,
        gap_p99_ms=5.0,
        tokens_per_s=tokens_per_s,
        tokens_per_event=1.0,
        cpu_engine_ms=500.0,
        cpu_beside_ms=100.0,
    )


def test_ratios_are_to_the_baselines_median_and_keep_their_range() -> None:
    """The range over rounds is what tells a noisy machine from a slow system."""
    cells = [cell(BASELINE, 0, 1000), cell(BASELINE, 1, 1000), cell("ours", 0, 900), cell("ours", 1, 700)]

    ours = next(row for row in summarize(cells) if row["system"] == "ours")

    assert ours["tokens_per_s_ratio"] == pytest.approx(0.8)
    assert ours["tokens_per_s_ratio_interval"] == pytest.approx([0.7, 0.9])
    assert ours["tokens_per_s"] == pytest.approx(800)


def test_added_ttft_is_a_difference_to_the_baseline_of_the_same_round() -> None:
    """Milliseconds on top, not a ratio: the hop costs the same for a long prompt."""
    cells = [cell(BASELINE, 0, 1000, ttft_p50_ms=30), cell("ours", 0, 1000, ttft_p50_ms=34)]

    assert summarize(cells)[1]["ttft_p50_added_ms"] == pytest.approx(4)


def test_a_ratio_is_to_what_the_baseline_did_around_that_time() -> None:
    """The machine gets slower: from 1,000 to 800 tokens a second in the course of three systems."""
    drifting = [cell(BASELINE, 0, 1000, number=0), cell(BASELINE, 0, 800, number=4)]
    others = [cell("early", 0, 950, number=1), cell("late", 0, 850, number=3)]

    ratios = {row["system"]: row["tokens_per_s_ratio"] for row in summarize([*drifting, *others])}

    assert ratios["early"] == pytest.approx(1.0)
    assert ratios["late"] == pytest.approx(1.0)


def test_the_interval_of_a_median_is_within_its_rounds_and_around_it() -> None:
    rounds = [900, 920, 940, 950, 960, 980, 1000, 700]
    cells = [cell(BASELINE, 0, 1000), *(cell("ours", number, value) for number, value in enumerate(rounds))]

    row = summarize(cells)[1]

    low, high = row["tokens_per_s_ratio_interval"]
    assert 0.7 < low < row["tokens_per_s_ratio"] < high <= 1.0
    assert row == summarize(cells)[1]


def test_the_baseline_runs_first_last_and_in_the_middle() -> None:
    known = {each.name: each for each in systems()}
    chosen = list(known.values())

    names = [each.name for each in passes(chosen)]

    assert names[0] == names[-1] == BASELINE
    assert names.count(BASELINE) == 3
    assert set(names) == set(known)
    assert [each.name for each in passes([known[BASELINE]])] == [BASELINE]


def test_ray_serve_llm_has_the_settings_that_our_launcher_makes(tmp_path: Path) -> None:
    ours = environment(tmp_path, InnerPorts(0), python_proxy=False)

    assert {name: ours[name] for name in OUR_SETTINGS} == OUR_SETTINGS


def test_processor_time_is_told_by_process_and_for_a_thousand_tokens() -> None:
    before, after = {"VLLM::Worker": 1.0, "python": 2.0}, {"VLLM::Worker": 2.0, "python": 2.0, "haproxy": 0.5}

    assert ms_per_1k_tokens(before, after, 2000) == {"VLLM::Worker": 500.0, "haproxy": 250.0}


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

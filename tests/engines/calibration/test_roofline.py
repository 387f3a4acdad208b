"""Analytic profiles: the formulas, what they are known to give, and how well the step model follows them."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.calibration.roofline import Roofline, decode_step, main, make_profile, prompt_chunks
from engines.calibration.roofline_tables import DEVICES, MODELS
from engines.model.cost_model import StepWork
from engines.model.profile import load_profile
from policies.errors import ConfigError
from tests.tables import for_each

H100 = Roofline(MODELS["llama3-8b"], DEVICES["h100-sxm"])
ROOFLINES = st.builds(
    Roofline,
    st.sampled_from([MODELS["llama3-8b"], MODELS["qwen2.5-7b"]]),
    st.sampled_from(list(DEVICES.values())),
    st.sampled_from([1, 2, 4]),
)
WORKS = st.builds(StepWork, st.integers(1, 8192), st.integers(0, 10**8), st.integers(1, 256), st.integers(0, 400_000))
PREFILL_S = {1000: 0.032, 8192: 0.27 + 0.04, 32_768: 1.06 + 0.57}
DECODE_S = {(1, 1): 0.0060, (64, 1000): 0.0091, (256, 1100): 0.0197}


@for_each("prompt_tokens", PREFILL_S)
def test_prefill_of_llama_8b_on_an_h100_takes_what_the_formulas_say(prompt_tokens: int) -> None:
    """Within 5% for the maximum, which has overheads on top; the sum of five terms within 20%."""
    expected_s = PREFILL_S[prompt_tokens]
    profile = make_profile("test", H100, "2026-01-01")

    assert H100.prefill_s(prompt_tokens) == pytest.approx(expected_s, rel=0.05)
    assert sum(map(profile.step.seconds, prompt_chunks(prompt_tokens))) == pytest.approx(expected_s, rel=0.20)


@for_each("size", DECODE_S)
def test_decode_of_llama_8b_on_an_h100_takes_what_the_formulas_say(size: tuple[int, int]) -> None:
    """The same tolerances."""
    expected_s = DECODE_S[size]
    profile = make_profile("test", H100, "2026-01-01")

    assert H100.step_s(decode_step(*size)) == pytest.approx(expected_s, rel=0.06)
    assert profile.step.seconds(decode_step(*size)) == pytest.approx(expected_s, rel=0.20)


def test_kv_capacity_is_what_weights_and_activations_leave() -> None:
    assert H100.kv_capacity_tokens() == pytest.approx(397_000, rel=0.01)
    assert H100.kv_capacity_tokens() % 16 == 0
    assert [MODELS[name].kv_bytes_per_token // 1024 for name in ("llama3-8b", "llama3-70b", "qwen2.5-7b")] == [
        128,
        320,
        56,
    ]


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError):
        make_profile("test", Roofline(MODELS["llama3-70b"], DEVICES["h100-sxm"]), "2026-01-01")

    assert make_profile("test", Roofline(MODELS["llama3-70b"], DEVICES["h100-sxm"], 4), "2026-01-01")


@given(ROOFLINES, WORKS, WORKS)
def test_more_work_never_takes_less_time(roofline: Roofline, work: StepWork, more: StepWork) -> None:
    both = StepWork(*map(sum, zip(work, more, strict=True)))
    profile = make_profile("test", roofline, "2026-01-01")

    assert roofline.step_s(both) >= roofline.step_s(work)
    assert profile.step.seconds(both) >= profile.step.seconds(work)


@given(ROOFLINES)
def test_one_sequence_that_decodes_is_bound_by_memory_and_a_long_prompt_by_computing(roofline: Roofline) -> None:
    lone, (prompt,) = decode_step(1, 1000), prompt_chunks(8192)

    assert roofline.memory_s(lone) > 10 * roofline.compute_s(lone)
    assert roofline.compute_s(prompt) > 10 * roofline.memory_s(prompt)


@given(ROOFLINES)
def test_the_profile_says_how_far_the_sum_is_off_the_maximum(roofline: Roofline) -> None:
    found = make_profile("test", roofline, "2026-01-01").provenance.residuals

    assert found["approximation_decode_median"] < 0.15
    assert found["approximation_prefill_median"] < 0.20
    assert found["approximation_worst"] >= found["approximation_mixed_p90"] > 0


def test_devices_that_share_a_model_are_faster_but_not_by_their_number() -> None:
    four = Roofline(MODELS["llama3-8b"], DEVICES["h100-sxm"], 4)
    work = decode_step(64, 1000)

    assert H100.step_s(work) / 4 < four.step_s(work) < H100.step_s(work) / 2


def test_the_profile_that_comes_with_spillway_is_what_this_code_makes() -> None:
    shipped = load_profile("h100-llama3-8b")
    made = make_profile("h100-llama3-8b", H100, shipped.provenance.date)

    for name, value in msgspec.structs.asdict(made.step).items():
        assert math.isclose(getattr(shipped.step, name), value, rel_tol=1e-6, abs_tol=1e-15), name
    assert msgspec.structs.replace(shipped, step=made.step) == made


def test_the_command_writes_a_profile_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "two-a100.yaml"

    status = main(["--model", "qwen2.5-7b", "--device", "a100-80g", "--tensor-parallel", "2", "--output", str(output)])

    profile = load_profile(str(output))
    assert status == 0
    assert profile.name == "two-a100"
    assert profile.provenance.kind == "analytic"
    assert profile.provenance.machine == "2 x NVIDIA A100 SXM 80 GB"
    assert "max((weight bytes + KV bytes)" in profile.provenance.method
    assert "approximation_decode_median" in capsys.readouterr().out


def test_the_command_says_when_a_model_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "none.yaml"

    assert main(["--model", "llama3-70b", "--device", "h100-sxm", "--output", str(output)]) == 2
    assert "tensor_parallel" in capsys.readouterr().err
    assert not output.exists()

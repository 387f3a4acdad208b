"""Calibration from end to end, on engines whose coefficients are known, in virtual time."""

import dataclasses
from itertools import pairwise

import msgspec
import pytest

from engines import EngineProfile
from engines.calibration.runner import Measurement
from engines.calibration.samples import Region
from engines.calibration.study import CalibrationFindings, CalibrationPlan, bounds_of, conclude, measure
from engines.model.cost_model import StepCoefficients
from engines.model.profile import KvCache, Overheads, Provenance
from engines.vllm.step_log import EngineStep
from tests.engines.model_engine import ModelEngine
from tests.engines.virtual_time import run_in_virtual_time
from tests.tables import for_each

CPU = EngineProfile(
    name="known",
    provenance=Provenance(kind="analytic", model="none", machine="none", date="2026-01-01", method="made up"),
    step=StepCoefficients(
        step_s=0.003,
        new_token_s=3.4e-5,
        attention_pair_s=5.4e-8,
        sequence_s=4.5e-5,
        context_token_s=2.5e-7,
        admission_s=0.0011,
        shared_token_saving_s=1.8e-7,
    ),
    overheads=Overheads(request_s=0.0008, token_s=5e-5),
    kv=KvCache(block_tokens=128, capacity_tokens=524_288, bytes_per_token=2048, bandwidth_bytes_per_s=1e9),
    context_tokens=8192,
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    start_s=20.0,
)
GPU = msgspec.structs.replace(
    CPU,
    step=StepCoefficients(
        step_s=0.006,
        new_token_s=2.6e-5,
        attention_pair_s=1.3e-9,
        sequence_s=2e-5,
        context_token_s=3.7e-8,
        admission_s=0.0004,
        shared_token_saving_s=1e-8,
    ),
    kv=KvCache(block_tokens=16, capacity_tokens=396_256, bytes_per_token=131_072, bandwidth_bytes_per_s=4e10),
    context_tokens=131_072,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
)


def calibrated(profile: EngineProfile, *, quick: bool) -> CalibrationFindings:
    steps: list[EngineStep] = []
    engine = ModelEngine(profile, steps.append)
    plan = CalibrationPlan(repeats=2, seed=3, longest_context_tokens=16_384, quick=quick)
    return conclude(measured(engine, steps, plan), bounds_of(engine.info, plan), plan)


def measured(engine: ModelEngine, steps: list[EngineStep], plan: CalibrationPlan) -> list[Measurement]:
    bounds = bounds_of(engine.info, plan)
    return run_in_virtual_time(measure(engine, steps, bounds, plan, lambda what, done, total: None))


@for_each("profile", [CPU, GPU], ids=["cpu", "gpu"])
@for_each("quick", [True, False], ids=["quick", "full"])
def test_calibration_finds_the_coefficients_of_an_engine(profile: EngineProfile, quick: bool) -> None:
    findings = calibrated(profile, quick=quick)

    for name in StepCoefficients.__struct_fields__:
        assert getattr(findings.coefficients, name) == pytest.approx(getattr(profile.step, name), rel=0.01), name
    assert findings.overheads.request_s == pytest.approx(profile.overheads.request_s, rel=0.05)
    assert findings.overheads.token_s == pytest.approx(profile.overheads.token_s, rel=0.05)
    assert all(abs(findings.residuals[f"held_out_{kind}_p90"]) < 0.01 for kind in Region)


def test_every_kind_of_step_is_measured_and_held_out() -> None:
    findings = calibrated(CPU, quick=False)

    for groups in (findings.groups, findings.held_out):
        regions = [each.region for each in groups]
        assert min(regions.count(region) for region in Region) >= 10
    assert max(each.work.sequences for each in findings.groups) == CPU.max_num_seqs
    assert max(each.work.context_tokens for each in findings.groups) > 90_000


def test_the_same_seed_measures_the_same() -> None:
    first, second = (calibrated(CPU, quick=True) for _ in range(2))

    assert first == second


def told_late(measurement: Measurement) -> Measurement:
    """As an engine tells it that launches a step with a prompt for 9 ms before it tells the end of the one before."""
    steps = list(measurement.steps)
    for index, (step, after) in enumerate(pairwise(measurement.steps)):
        if after.prompt_tokens:
            steps[index] = step._replace(ended_s=min(step.ended_s + 0.009, after.ended_s - 0.0005))
    return dataclasses.replace(measurement, steps=tuple(steps))


def test_calibration_finds_the_coefficients_of_an_engine_that_runs_ahead() -> None:
    steps: list[EngineStep] = []
    engine = ModelEngine(GPU, steps.append)
    plan = CalibrationPlan(repeats=2, seed=3, longest_context_tokens=16_384)
    bounds = bounds_of(engine.info, plan)
    told = [told_late(each) for each in measured(engine, steps, plan)]

    found = conclude(told, bounds, dataclasses.replace(plan, runs_ahead=True))
    misled = conclude(told, bounds, plan)

    for name in ("step_s", "new_token_s", "attention_pair_s", "sequence_s", "context_token_s"):
        assert getattr(found.coefficients, name) == pytest.approx(getattr(GPU.step, name), rel=0.02), name
    assert found.residuals["held_out_mixed_median"] < 0.01
    assert misled.residuals["held_out_mixed_median"] > 0.1

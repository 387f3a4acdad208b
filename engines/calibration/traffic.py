"""How a profile that was fitted to steps made for it is put right by steps of whole traffic."""

import statistics
from collections.abc import Sequence

import msgspec

from engines.calibration.samples import StepSample, TrafficStep
from engines.model.cost_model import StepCoefficients


def with_traffic(alone: StepCoefficients, runs: Sequence[Sequence[TrafficStep]]) -> StepCoefficients:
    """Adds to ``admission_s`` what requests cost a busy engine beyond their steps, never less than nothing.

    Requests are unpacked and freed beside steps, and leave cold caches behind: all of that is the difference between
    how long the steps of traffic take and how long the same steps take by themselves. A run's settled decode steps say
    how fast the machine was at the time. Of several runs the median counts.

    Args:
        alone: Coefficients of undisturbed steps.
        runs: The steps of each run of traffic.
    """
    extras = [extra_s for run in runs if (extra_s := _extra_s(alone, run)) is not None]
    if not extras:
        return alone
    admission_s = alone.admission_s + max(0.0, statistics.median(extras))
    return msgspec.structs.replace(alone, admission_s=admission_s)


def _extra_s(alone: StepCoefficients, run: Sequence[TrafficStep]) -> float | None:
    """Seconds that each admitted request adds to the steps of one run; ``None`` where the run can't say."""
    num_admitted = sum(each.work.admitted for each in run)
    settled = [each for each in run if each.is_settled]
    if not num_admitted or not settled:
        return None
    pace = sum(each.seconds for each in settled) / sum(alone.seconds(each.work) for each in settled)
    return sum(each.seconds - pace * alone.seconds(each.work) for each in run) / num_admitted


def with_sharing(alone: StepCoefficients, runs: Sequence[Sequence[StepSample]]) -> StepCoefficients:
    """Adds ``shared_token_saving_s``, between nothing and what reading a KV token costs: the median over runs.

    Args:
        alone: Coefficients of steps of sequences that share nothing.
        runs: Decode steps of sequences that share a prefix, from each run.
    """
    savings = [
        statistics.median((alone.seconds(each.work) - each.seconds) / each.work.shared_tokens for each in run)
        for run in runs
        if run
    ]
    saving_s = statistics.median(savings) if savings else 0.0
    return msgspec.structs.replace(alone, shared_token_saving_s=min(max(0.0, saving_s), alone.context_token_s))


def traffic_bias(coefficients: StepCoefficients, runs: Sequence[Sequence[TrafficStep]]) -> float:
    """How much more time than they took the model gives all steps of traffic together, as a fraction."""
    steps = [each for run in runs for each in run]
    measured_s = sum(each.seconds for each in steps)
    return round(sum(coefficients.seconds(each.work) for each in steps) / measured_s - 1, 4) if steps else 0.0

"""What requests, tokens and KV transfers cost beside the steps, and what a shared prefix saves.

A profile that was fitted to steps made for it is put right by the steps of whole traffic.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import scipy.optimize
import scipy.stats

from engines.calibration.fit import Link, Works
from engines.calibration.runner import Measurement
from engines.calibration.samples import StepSample, TrafficStep
from engines.model.cost_model import StepCoefficients

SHORTEST_TRANSFER_S = 1e-6


def fit_token_overhead(delays: Sequence[tuple[int, float]], quantile: float = 0.5) -> float:
    """``token_s``: how much later outputs are delivered for each further sequence in the step, never negative.

    What a delivery takes whatever the batch is part of ``request_s``, because the step model has no other place for it.

    Args:
        delays: Sequences in a step, and seconds from the step's end to one delivery.
        quantile: Which of the deliveries of steps of one size counts.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for num_sequences, delay_s in delays:
        by_size[num_sequences].append(delay_s)
    if len(by_size) < 2:
        return 0.0
    sizes = sorted(by_size)
    typical = [float(np.quantile(by_size[size], quantile)) for size in sizes]
    return max(0.0, float(scipy.stats.theilslopes(typical, sizes).slope))


def fit_request_overhead(
    coefficients: StepCoefficients,
    token_overhead_s: float,
    lone_requests: Sequence[tuple[float, Works]],
    quantile: float = 0.5,
) -> float:
    """``request_s``: what is left of a lone request's time to first token beside its steps, never negative.

    Args:
        coefficients: Of the steps.
        token_overhead_s: Of the delivery.
        lone_requests: Time to first token, and the work of the steps up to it.
        quantile: Which of the requests of one length counts; of all lengths it is the median.
    """
    left: dict[int, list[float]] = defaultdict(list)
    for ttft_s, works in lone_requests:
        steps_s = sum(map(coefficients.seconds, works))
        left[works[0].new_tokens].append(ttft_s - steps_s - token_overhead_s * works[-1].sequences)
    return max(0.0, statistics.median(float(np.quantile(each, quantile)) for each in left.values()))


def fit_link(transfers: Sequence[tuple[int, float]], bytes_per_token: int) -> Link:
    """Overhead in seconds and bandwidth in bytes per second of KV transfers.

    Where longer prompts take no longer to transfer than short ones, the bandwidth is the one at which the longest would
    take as much as repetitions of it differ: it is at least that.

    Args:
        transfers: Tokens, and seconds.
        bytes_per_token: Bytes of KV for one token.
    """
    by_tokens: dict[int, list[float]] = defaultdict(list)
    for tokens, seconds in transfers:
        by_tokens[tokens].append(seconds)
    rows = np.array([(1.0, tokens * bytes_per_token) for tokens in by_tokens])
    typical_s = np.array([statistics.median(times) for times in by_tokens.values()])
    scale = rows[:, 1].max()
    (overhead_s, longest_s), _ = scipy.optimize.nnls(rows / (1.0, scale), typical_s)
    if longest_s == 0.0:
        longest = by_tokens[max(by_tokens)]
        longest_s = max(max(longest) - min(longest), SHORTEST_TRANSFER_S)
    return float(overhead_s), float(scale / longest_s)


def delivery_delays(measurement: Measurement) -> list[tuple[int, float]]:
    """For requests that finished: sequences in their last step, and seconds from its end to their last chunk."""
    finished_s = {each.request_id: each.finished_s for each in measurement.requests}
    return [
        (step.prompt_sequences + step.decode_sequences, finished_s[output.request_id] - step.ended_s)
        for step in measurement.steps
        for output in step.outputs
        if output.is_last
    ]


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

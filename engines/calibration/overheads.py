"""What requests, tokens and KV transfers cost beside the steps."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import scipy.optimize
import scipy.stats

from engines.calibration.fit import Link, Works
from engines.calibration.runner import Measurement
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

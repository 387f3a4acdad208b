"""How many requests a replica takes at a time, how long it lets tokens gather, and how regular a period is; both hosts
go by it."""

import math

FLUSH_PAUSE_PER_STREAM_S = 0.0015
"""For each stream that the replica has open; docs/reports/performance.md has the measurements behind it."""


WAITING_FRACTION = 0.25
"""A quarter more than fits into a step, so that the engine never runs dry between two dispatches."""


PERIOD_JITTER_FRACTION = 0.1
"""Of a period, each way: what everybody does at the same time is done late."""


def max_ongoing_requests(max_num_seqs: int, waiting_fraction: float = WAITING_FRACTION) -> int:
    """What fits into a step, and a share of it that waits inside the engine."""
    return math.ceil(max_num_seqs * (1 + waiting_fraction))


def flush_pause_s(num_open_streams: int, flush_interval_s: float) -> float:
    """The pause between two batches of a stream's tokens: longer on a busy replica, never above the interval."""
    return min(flush_interval_s, num_open_streams * FLUSH_PAUSE_PER_STREAM_S)


def jittered(period_s: float, draw: float) -> float:
    """The next period, by a draw from [0, 1)."""
    return period_s * (1.0 + PERIOD_JITTER_FRACTION * (2.0 * draw - 1.0))

"""How long a replica lets tokens gather before it carries them on; both hosts go by it."""

FLUSH_PAUSE_PER_STREAM_S = 0.0015
"""For each stream that the replica has open; docs/performance.md has the measurements behind it."""


def flush_pause_s(num_open_streams: int, flush_interval_s: float) -> float:
    """The pause between two batches of a stream's tokens: longer on a busy replica, never above the interval."""
    return min(flush_interval_s, num_open_streams * FLUSH_PAUSE_PER_STREAM_S)

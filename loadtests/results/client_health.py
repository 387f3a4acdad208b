"""Whether a client was fast enough to measure anything: the gate that tells a slow client from a slow service.

A run that breaks the gate is invalid and not slow: what it measured is the client.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

MOST_LAG_S = 0.010
MOST_LAG_FRACTION = 0.01
"""Of the median TTFT: what is late by less than this does not show in it."""
MOST_CPU_FRACTION = 0.8
LEAST_ACHIEVED_FRACTION = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How the client fared.

    Args:
        sent: Requests sent.
        send_lag_p99_s: From when a request was due to when it was sent, 99th percentile.
        cpu_fraction: CPU time of the client's process / the run's time; of several processes the busiest's.
        achieved_fraction: Rate of sending / rate in the plan, over the time in which arrivals were due.
        wrong_lengths: Answers that had another number of tokens than planned, by their usage or by what was streamed.
        cached_tokens: Prompt tokens that servers found in prefix caches, as their usage says.
        errors: How often each error was seen: HTTP status and message.
        client_dropped: Requests that were due and never sent, because too many were in flight already.
    """

    sent: int
    send_lag_p99_s: float
    cpu_fraction: float
    achieved_fraction: float
    wrong_lengths: int
    cached_tokens: int
    errors: dict[str, int]
    client_dropped: int = 0


def health_problems(health: ClientHealth, median_ttft_s: float) -> Iterator[str]:
    """Why a run proves nothing, a sentence for each limit that its client broke.

    Args:
        health: How the client fared.
        median_ttft_s: What the run measured; NaN where there was no first token.
    """
    most_lag_s = max(MOST_LAG_S, MOST_LAG_FRACTION * median_ttft_s if median_ttft_s > 0 else 0.0)
    if health.send_lag_p99_s > most_lag_s:
        yield (
            f"requests were sent {1e3 * health.send_lag_p99_s:.1f} ms late (99th percentile; allowed: "
            f"{1e3 * most_lag_s:.1f} ms): give the client a core of its own, or lower the rate fraction"
        )
    if health.cpu_fraction >= MOST_CPU_FRACTION:
        yield (
            f"the busiest client process used {health.cpu_fraction:.0%} of a core (allowed: less than "
            f"{MOST_CPU_FRACTION:.0%}): lower the rate fraction, or use more processes (locust --processes)"
        )
    if health.achieved_fraction < LEAST_ACHIEVED_FRACTION:
        yield (
            f"the client sent at {health.achieved_fraction:.1%} of the planned rate (allowed: from "
            f"{LEAST_ACHIEVED_FRACTION:.0%}): lower the rate fraction"
        )
    if health.client_dropped:
        yield (
            f"{health.client_dropped:,} requests were not sent, because too many were in flight: raise "
            "--max-in-flight, or lower the rate fraction until the service keeps up"
        )


def own_cpu_s() -> float:
    """CPU time that this process has had so far, its threads' included."""
    times = os.times()
    return times.user + times.system

"""What a deployment's front end takes of its processor: for a request, and for a chunk of a stream.

Measured on the idle deployment: small requests one after the other, then a few long answers side by side. The costs
make the simulated gateway a queue (:mod:`cluster.sim.gateway_processor`); nothing of it comes from the plans that are
compared.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

IDLE_S = 3.0
REQUESTS = 60
STREAMS, STREAM_TOKENS = 4, 256


class GatewayOverhead(NamedTuple):
    """Seconds of processor time.

    Args:
        request_s: Of a request of one token, from the client's sending to the end of its answer.
        chunk_s: Of each chunk of a stream, which is a token where none waits for company.
    """

    request_s: float = 0.0
    chunk_s: float = 0.0


NO_COST = GatewayOverhead()


def measure(
    cpu_s: Callable[[], float],
    wait: Callable[[float], None],
    run_requests: Callable[[int], None],
    run_streams: Callable[[int, int], None],
    now_s: Callable[[], float] = time.monotonic,
) -> GatewayOverhead:
    """Measures, and leaves out what the front end takes while nothing happens.

    Args:
        cpu_s: Processor time of the front end and the client so far.
        wait: Does nothing for so many seconds.
        run_requests: Runs so many small requests, one after the other.
        run_streams: Runs so many requests at a time, each of so many tokens.
        now_s: A clock.
    """

    def spent(call: Callable[[], None]) -> tuple[float, float]:
        """Processor time and time that a call took."""
        cpu_before_s, began_s = cpu_s(), now_s()
        call()
        return cpu_s() - cpu_before_s, now_s() - began_s

    busy_s, took_s = spent(lambda: wait(IDLE_S))
    background = busy_s / took_s
    busy_s, took_s = spent(lambda: run_requests(REQUESTS))
    request_s = max(0.0, busy_s - background * took_s) / REQUESTS
    busy_s, took_s = spent(lambda: run_streams(STREAMS, STREAM_TOKENS))
    streams_s = max(0.0, busy_s - STREAMS * request_s - background * took_s)
    return GatewayOverhead(request_s, streams_s / (STREAMS * STREAM_TOKENS))

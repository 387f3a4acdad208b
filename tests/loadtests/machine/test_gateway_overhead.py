"""What is read out of processor times of a front end."""

import pytest

from loadtests.machine.gateway_overhead import STREAMS, GatewayOverhead, measure

BACKGROUND = 0.1


class FrontEnd:
    """Takes known processor times, and time."""

    def __init__(self, cost: GatewayOverhead, noise_s: float = 0.0) -> None:
        self._cost = cost
        self._noise_s = noise_s
        self.cpu_s = 5.0
        self.now_s = 100.0

    def wait(self, seconds: float) -> None:
        self._pass(seconds, self._noise_s)

    def run_requests(self, num_requests: int) -> None:
        self._pass(0.02 * num_requests, num_requests * self._cost.request_s)

    def run_streams(self, num_streams: int, num_tokens: int) -> None:
        """Each token is a chunk."""
        self._pass(0.004 * num_tokens, num_streams * (self._cost.request_s + num_tokens * self._cost.chunk_s))

    def _pass(self, seconds: float, cpu_s: float) -> None:
        self.now_s += seconds
        self.cpu_s += BACKGROUND * seconds + cpu_s


def measured(end: FrontEnd) -> GatewayOverhead:
    return measure(lambda: end.cpu_s, end.wait, end.run_requests, end.run_streams, lambda: end.now_s)


def test_requests_and_chunks_are_told_from_each_other_and_from_what_always_runs() -> None:
    cost = measured(FrontEnd(GatewayOverhead(request_s=0.008, chunk_s=0.0004)))

    assert STREAMS > 1
    assert cost == pytest.approx((0.008, 0.0004))


def test_a_noisy_idle_time_makes_no_cost_negative() -> None:
    assert measured(FrontEnd(GatewayOverhead(request_s=0.0001, chunk_s=0.0), noise_s=2.0)) == GatewayOverhead(0.0, 0.0)

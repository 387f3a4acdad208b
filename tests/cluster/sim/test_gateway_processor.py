"""The gateway's processor is a single server, and streams take their share of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.sim.gateway_processor import MOST_STREAM_SHARE, GatewayProcessor
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from policies.errors import ConfigError
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet, poisson, request


def costly(
    replicas: int = 1,
    *,
    request_s: float = 0.01,
    chunk_s: float = 0.0005,
    num_gateways: int = 1,
    flush_interval_s: float = 0.05,
) -> FleetSpec:
    return fleet(
        replicas,
        num_gateways=num_gateways,
        gateway_request_s=request_s,
        gateway_chunk_s=chunk_s,
        flush_interval_s=flush_interval_s,
    )


def ttfts_s(spec: FleetSpec, traffic: PlainTraffic) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    table = simulate(spec, dispatcher(spec), traffic, ["all"], seed=1)
    order = np.argsort(table.logical_request)
    ttfts: np.ndarray[tuple[int], np.dtype[np.float64]] = (table.first_token_s - table.scheduled_s)[order]
    return ttfts


@given(st.lists(st.floats(0.0, 0.05), min_size=1, max_size=50))
def test_requests_wait_as_lindleys_recursion_says(gaps_s: list[float]) -> None:
    processor = GatewayProcessor(costly(chunk_s=0.0))
    now_s, wait_s = 0.0, 0.0
    for number, gap_s in enumerate(gaps_s):
        now_s += gap_s
        wait_s = max(0.0, wait_s + 0.01 - gap_s) if number else 0.0

        assert processor.done_s(now_s, 0) == pytest.approx(now_s + wait_s + 0.01)


def test_a_request_takes_longer_by_the_share_of_the_streams() -> None:
    """Eight streams on two replicas: a chunk each in every 6 ms."""
    processor = GatewayProcessor(costly(2))

    assert processor.stream_share(8) == pytest.approx(8 * 0.0005 / 0.006)
    assert processor.done_s(1.0, 8) == pytest.approx(1.0 + 0.01 / (1 - processor.stream_share(8)))


def test_streams_that_wait_for_no_company_send_a_chunk_with_every_step() -> None:
    processor = GatewayProcessor(costly(flush_interval_s=0.0))
    assert processor.stream_share(2) == pytest.approx(2 * 0.0005 / PROFILE.step.step_s)


def test_a_lone_stream_sends_no_more_chunks_than_its_engine_makes_steps() -> None:
    assert GatewayProcessor(costly()).stream_share(1) == pytest.approx(0.0005 / PROFILE.step.step_s)


@given(st.integers(0, 10_000))
def test_streams_leave_something_for_requests(num_streams: int) -> None:
    share = GatewayProcessor(costly(chunk_s=0.1)).stream_share(num_streams)

    assert 0 <= share <= MOST_STREAM_SHARE


def test_a_cost_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="gateway_request_s"):
        costly(request_s=-0.001)
    with pytest.raises(ConfigError, match="gateway_chunk_s"):
        costly(chunk_s=-0.001)


def test_requests_that_arrive_together_are_read_one_after_the_other() -> None:
    plan = PlainTraffic([request(number, 0.0, prompt_tokens=1, output_tokens=1) for number in range(3)])

    free_s = ttfts_s(fleet(3), plan)
    queued_s = ttfts_s(costly(3, request_s=0.05), plan)

    assert queued_s - free_s == pytest.approx([0.05, 0.10, 0.15])


def test_a_request_behind_streams_is_read_later() -> None:
    streams = [request(number, 0.0, prompt_tokens=1, output_tokens=200) for number in range(4)]
    plan = PlainTraffic([*streams, request(4, 0.5, prompt_tokens=1, output_tokens=1)])

    without_s, with_s = (ttfts_s(costly(8, chunk_s=chunk_s), plan)[-1] for chunk_s in (0.0, 0.0005))

    assert with_s - without_s == pytest.approx(0.01 / (1 - 4 * 0.0005 / PROFILE.step.step_s) - 0.01)


def test_every_request_is_answered_whatever_the_processor_costs() -> None:
    traffic = poisson(300, 80.0, seed=2)

    simulate(spec := costly(2, num_gateways=2), dispatcher(spec), traffic, ["all"], seed=1)

    assert len(traffic.ended) == 300

"""Waits in closed form, against tables, special cases and each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import StationaryQueue, erlang_c, fewest_servers, highest_rate_per_s
from tests.tables import for_each

SERVERS = st.integers(1, 40)
UTILISATIONS = st.floats(0.05, 0.98)
QUANTILES = st.floats(0.5, 0.999)


def queue(servers: int = 1, utilisation: float = 0.5, service_s: float = 0.1, **scv: float) -> StationaryQueue:
    rate_per_s = utilisation * servers / service_s
    return StationaryQueue(rate_per_s=rate_per_s, service_s=service_s, servers=servers, **scv)


@for_each(("servers", "load", "expected"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (10, 8.0, 0.4092), (5, 0.0, 0.0)])
def test_erlang_c_has_the_values_of_the_tables(servers: int, load: float, expected: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(expected, abs=1e-4)


@for_each("servers", [0, 4])
def test_with_more_work_than_servers_everybody_waits_for_ever(servers: int) -> None:
    flooded = StationaryQueue(rate_per_s=8.0, service_s=0.5, servers=servers)
    assert (flooded.wait_probability, flooded.is_stable) == (1.0, False)
    assert flooded.mean_wait_s == flooded.wait_quantile_s(0.5) == flooded.response_quantile_s(0.5) == math.inf


def test_nobody_waits_where_nobody_comes() -> None:
    idle = StationaryQueue(rate_per_s=0.0, service_s=0.5)
    assert (idle.utilisation, idle.mean_wait_s, idle.wait_quantile_s(0.99)) == (0.0, 0.0, 0.0)
    assert idle.response_quantile_s(0.99) == pytest.approx(0.5 * math.log(100))


@given(UTILISATIONS, st.floats(0, 20))
def test_one_server_waits_as_pollaczek_and_khinchine_say(utilisation: float, scv_service: float) -> None:
    one = queue(utilisation=utilisation, scv_service=scv_service)
    assert one.mean_wait_s == pytest.approx(utilisation * 0.1 * (1.0 + scv_service) / 2 / (1.0 - utilisation))


@given(UTILISATIONS, QUANTILES)
def test_wait_and_service_at_one_server_are_exponential_together(utilisation: float, quantile: float) -> None:
    one = queue(utilisation=utilisation)
    assert one.mean_response_s == pytest.approx(0.1 / (1.0 - utilisation))
    assert one.response_quantile_s(quantile) == pytest.approx(one.mean_response_s * -math.log(1.0 - quantile), rel=1e-6)


@given(SERVERS, UTILISATIONS)
def test_the_mean_is_the_mean_of_the_quantiles(servers: int, utilisation: float) -> None:
    many = queue(servers, utilisation)
    quantiles = 1.0 - np.geomspace(1.0, 1e-9, 301)
    for mean_s, quantile_s in (
        (many.mean_wait_s, many.wait_quantile_s),
        (many.mean_response_s, many.response_quantile_s),
    ):
        values_s = [quantile_s(each) for each in quantiles[1:]]
        assert np.trapezoid([values_s[0], *values_s], quantiles) == pytest.approx(mean_s, rel=0.02, abs=1e-6)


@given(SERVERS, UTILISATIONS, QUANTILES, st.floats(0.1, 1.0))
def test_more_of_the_jobs_take_longer_and_a_busier_queue_does(
    servers: int, utilisation: float, quantile: float, part: float
) -> None:
    many = queue(servers, utilisation)
    assert many.response_quantile_s(quantile) >= many.response_quantile_s(part * quantile) - 1e-9
    less = replace(many, rate_per_s=part * many.rate_per_s)
    assert many.response_quantile_s(quantile) >= less.response_quantile_s(quantile) - 1e-9


@given(SERVERS, UTILISATIONS)
def test_what_is_in_the_system_is_little_s_law(servers: int, utilisation: float) -> None:
    many = queue(servers, utilisation)
    assert many.mean_in_system == pytest.approx(many.rate_per_s * many.mean_wait_s + many.load)
    assert many.utilisation == pytest.approx(utilisation)


@given(SERVERS, QUANTILES, st.floats(1.1, 20))
def test_at_the_highest_rate_the_quantile_is_the_limit(servers: int, quantile: float, times: float) -> None:
    servers_alone = StationaryQueue(rate_per_s=0.0, service_s=0.1, servers=servers)
    limit_s = times * servers_alone.response_quantile_s(quantile)
    rate_per_s = highest_rate_per_s(servers_alone, limit_s, quantile)
    assert 0 < rate_per_s < servers / 0.1
    busy = replace(servers_alone, rate_per_s=rate_per_s * (1 - 1e-9))
    assert busy.response_quantile_s(quantile) == pytest.approx(limit_s, rel=1e-3)


def test_a_limit_that_the_service_alone_exceeds_is_kept_at_no_rate() -> None:
    assert highest_rate_per_s(queue(4), 0.4, 0.99) == 0.0


@given(st.floats(0.1, 400), QUANTILES, st.floats(1.001, 5))
def test_one_server_less_than_the_fewest_is_too_few(rate_per_s: float, quantile: float, times: float) -> None:
    queue_of_any = StationaryQueue(rate_per_s=rate_per_s, service_s=0.1)
    limit_s = times * replace(queue_of_any, rate_per_s=0.0).response_quantile_s(quantile)
    servers = fewest_servers(queue_of_any, limit_s, quantile)
    assert replace(queue_of_any, servers=servers).response_quantile_s(quantile) <= limit_s
    assert servers == 1 or replace(queue_of_any, servers=servers - 1).response_quantile_s(quantile) > limit_s


def test_no_number_of_servers_makes_the_service_itself_shorter() -> None:
    with pytest.raises(ValueError, match="no number of servers"):
        fewest_servers(queue(), 0.4, 0.99)

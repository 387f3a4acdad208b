import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimators import FadingMean, FadingRate, RecentValues

SAMPLES = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 10)), min_size=1, max_size=50)


def test_an_estimate_of_nothing_is_zero() -> None:
    assert FadingMean(10.0).at(5.0) == 0.0
    assert FadingRate(10.0).per_s_at(5.0) == 0.0


@given(SAMPLES)
def test_a_mean_stays_within_what_was_seen_and_zero(samples: list[tuple[float, float]]) -> None:
    mean, now_s = FadingMean(10.0), 0.0
    for value, pause_s in samples:
        now_s += pause_s
        mean.add(value, now_s)
    assert 0.0 <= mean.at(now_s) <= max(value for value, _ in samples) + 1e-9


def test_a_mean_goes_by_what_is_new() -> None:
    mean = FadingMean(10.0)
    for number in range(1000):
        mean.add(1.0 if number < 500 else 3.0, number * 0.1)
    assert mean.at(99.9) == pytest.approx(3.0, rel=0.02)


def test_a_mean_that_hears_of_nothing_goes_back_to_zero() -> None:
    mean = FadingMean(10.0)
    for number in range(100):
        mean.add(2.0, number * 0.1)
    assert mean.at(10.0) == pytest.approx(2.0, rel=0.05)
    assert mean.at(100.0) < 0.02


@given(st.floats(1, 1000), st.floats(0.5, 50))
def test_a_steady_rate_is_found(per_s: float, amount: float) -> None:
    rate, pause_s = FadingRate(10.0), amount / per_s
    num_samples = math.ceil(60.0 / pause_s)
    if num_samples > 20_000:
        return
    for number in range(num_samples):
        rate.add(amount, number * pause_s)

    assert rate.per_s_at(num_samples * pause_s) == pytest.approx(per_s, rel=0.02 + pause_s / 10.0)


class TestRecentValues:
    def test_the_latest_count_the_oldest_first(self) -> None:
        values = RecentValues(window_s=60.0, max_values=3)
        for number in range(5):
            values.add(float(number), float(number))
        assert values.at(5.0) == [2.0, 3.0, 4.0]

    def test_what_is_too_old_does_not_count(self) -> None:
        values = RecentValues(window_s=60.0, max_values=3)
        values.add(1.0, 0.0)
        values.add(2.0, 10.0)
        assert values.at(60.0) == [1.0, 2.0]
        assert values.at(61.0) == [2.0]

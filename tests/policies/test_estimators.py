import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.estimators import FadingLine, FadingMean, FadingRate, KvForecast, LaterWork, Margin, RecentValues
from policies.views import Geometry, RequestView
from tests.policy_doubles import a_request

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


@given(slope=st.floats(0.2, 5.0), intercept=st.floats(0.0, 3.0))
def test_a_line_is_found_through_what_lies_on_it(slope: float, intercept: float) -> None:
    assume(slope >= 1.0 or not intercept)
    line = FadingLine(100.0, prior=1e-6, most_pairs=1000)
    for number in range(500):
        x = float(number % 10)
        line.add(x, slope * x + intercept, number * 0.1)
    assert line.slope == pytest.approx(slope, rel=1e-3)
    assert line.intercept == pytest.approx(intercept, rel=0.02, abs=0.02)


def test_what_a_line_does_not_know_of_its_values_does_not_make_it_flat() -> None:
    """What should have taken long took little, and the other way round; in the mean all took what they should have."""
    line = FadingLine(100.0, prior=1e-6, most_pairs=1000)
    for number in range(500):
        x = float(1 + number % 10)
        line.add(11.0 - x, x, number * 0.1)

    assert line.slope == pytest.approx(1.0, rel=0.01)
    assert line.intercept == pytest.approx(0.0, abs=0.05)


def test_a_stall_that_holds_many_up_is_forgotten_by_a_few_that_come_after_it() -> None:
    line = FadingLine(10.0, prior=1.0, most_pairs=16)
    for _ in range(500):
        line.add(0.02, 5.0, 0.0)
    assert line.intercept > 4.0

    for number in range(64):
        line.add(0.02, 0.03, 0.01 * number)
    assert line.intercept < 0.2


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 100)), max_size=50))
def test_a_line_never_falls_and_never_promises_a_time_before_now(pairs: list[tuple[float, float, float]]) -> None:
    line, now_s = FadingLine(10.0, prior=1.0, most_pairs=64), 0.0
    assert (line.slope, line.intercept) == (1.0, 0.0), "it begins as what was expected"
    for x, y, pause_s in pairs:
        now_s += pause_s
        line.add(x, y, now_s)
        assert line.slope >= 0.0
        assert line.intercept >= 0.0


@given(error_s=st.lists(st.floats(0.0, 5.0), min_size=10, max_size=20))
def test_a_margin_settles_where_as_few_predictions_are_too_low_as_may_be(error_s: list[float]) -> None:
    margin, too_low = Margin(0.1, step=0.05, start=0.0), 0
    for number in range(20_000):
        is_too_low = margin.value < error_s[number % len(error_s)]
        too_low += is_too_low and number >= 10_000
        margin.learn(was_too_low=is_too_low)
    assert too_low / 10_000 <= 0.11


def of_tokens(prompt_tokens: int, expected_tokens: int, max_output_tokens: int = 1000) -> RequestView:
    view = replace(a_request(), prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens)
    return view.classified(Geometry(output_tokens=expected_tokens), "default", 1.0)


class TestKvForecast:
    """An answer's tokens come every 10 ms: one of 100 tokens has been seen to take a second."""

    def seen(self) -> KvForecast:
        forecast = KvForecast(memory_s=1e9)
        for number in range(1000):
            use = forecast.enter(of_tokens(0, 100))
            forecast.begin(use, float(number))
            forecast.end(use, 100, number + 1.0)
        return forecast

    def test_a_request_alone_peaks_at_its_end(self) -> None:
        assert KvForecast(10.0).peak_tokens(of_tokens(300, 50), 0.0) == 350

    def test_requests_that_end_before_others_grow_are_not_summed_at_their_peaks(self) -> None:
        forecast = self.seen()
        old = forecast.enter(of_tokens(1000, 200))
        forecast.begin(old, 2000.0)
        peak = forecast.peak_tokens(of_tokens(100, 500), 2001.0)  # the old one has 100 tokens to come
        assert peak == pytest.approx((1100 + 100) + (100 + 100), rel=0.01)
        assert peak < (1000 + 200) + (100 + 500)

    def test_an_answer_that_is_longer_than_expected_is_expected_to_double(self) -> None:
        forecast = self.seen()
        forecast.begin(forecast.enter(of_tokens(100, 50)), 2000.0)
        peak = forecast.peak_tokens(of_tokens(1, 1), 2001.0)  # it has emitted 100, and 100 are to come
        assert peak == pytest.approx(100 + 100 + 100, rel=0.02)

    def test_one_that_was_withdrawn_before_it_began_counts_no_more(self) -> None:
        forecast = KvForecast(10.0)
        forecast.end(forecast.enter(of_tokens(5000, 100)), 0, 1.0)
        assert forecast.peak_tokens(of_tokens(10, 10), 1.0) == 20

    def test_requests_of_other_gateways_are_taken_to_overlap_as_this_ones_do(self) -> None:
        forecast = self.seen()
        forecast.begin(forecast.enter(of_tokens(1000, 200)), 2000.0)
        request = of_tokens(100, 500)
        fraction = forecast.simultaneous_fraction(request, 2001.0)
        assert fraction == pytest.approx(1400 / 1800, rel=0.01)
        fits = [
            forecast.fits(request, 3600.0, 3600 * fraction * slack, until_s=0.0, now_s=2001.0) for slack in (1.01, 0.99)
        ]
        assert fits == [True, False]

    @given(
        st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 800), st.floats(0, 20)), max_size=20), st.floats(20, 40)
    )
    def test_the_peak_is_between_the_largest_own_peak_and_the_sum_of_all(
        self, others: list[tuple[int, int, float]], now_s: float
    ) -> None:
        forecast = self.seen()
        views = [of_tokens(prompt_tokens, expected_tokens) for prompt_tokens, expected_tokens, _ in others]
        for view in views:
            forecast.enter(view)
        request = of_tokens(100, 100)
        own = [view.kv_tokens for view in (*views, request)]
        assert max(own) <= forecast.peak_tokens(request, now_s) + 1e-6
        assert forecast.peak_tokens(request, now_s) <= sum(own) + 1e-6


def test_only_work_with_tighter_slos_goes_before_a_request_that_is_there_already() -> None:
    later = LaterWork(10.0, num_gateways=1)
    for number in range(1000):
        later.let_in(1.0, 0.05, number * 0.1)

    assert later.overtaking_s(9.0, 2.0, num_replicas=2, now_s=100.0) == pytest.approx(0.67, abs=0.05), "2 s, and 0.67"
    assert later.overtaking_s(1.0, 2.0, num_replicas=2, now_s=100.0) == 0.0
    assert later.overtaking_s(9.0, 0.0, num_replicas=2, now_s=100.0) == 0.0


def test_other_gateways_are_taken_to_have_let_in_as_much_as_this_one_until_they_tell() -> None:
    alone, one_of_four = LaterWork(10.0, num_gateways=1), LaterWork(10.0, num_gateways=4)
    for later in (alone, one_of_four):
        later.let_in(1.0, 0.2, now_s=5.0)

    assert alone.untold_s(5.0) == 0.0
    assert one_of_four.untold_s(5.0) == pytest.approx(0.6)
    assert one_of_four.untold_s(5.5) < 0.006, "told by then"

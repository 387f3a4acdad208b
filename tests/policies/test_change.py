"""The test for a change, on steady streams and on streams that change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimators import ChangeTest
from tests.tables import for_each

STEADY = 20_000


def drawn(seed: int, num: int, *, median: float = 120.0, sigma: float = 0.6) -> list[float]:
    """Lengths of at least 1."""
    draws = np.random.Generator(np.random.PCG64(seed)).standard_normal(num)
    return [max(1.0, round(each)) for each in (median * np.exp(sigma * draws)).tolist()]


@for_each("sigma", [0.1, 0.6, 1.0, 2.0])
def test_steady_streams_give_no_more_alarms_than_stated(sigma: float) -> None:
    """Four streams of each spread at a rate that allows 80 alarms."""
    num_alarms = 0
    for seed in range(4):
        test = ChangeTest(false_alarm_fraction=1e-3)
        for value in drawn(seed, STEADY, sigma=sigma):
            test.add(value)
        num_alarms += test.num_alarms

    assert num_alarms <= 1e-3 * 4 * STEADY


@for_each("seed", range(5))
def test_chat_that_becomes_code_is_noticed_within_a_window_and_dated(seed: int) -> None:
    test = ChangeTest()
    for value in drawn(seed, 2_000):
        assert test.add(value) == 0

    found = [test.add(value) for value in drawn(seed + 100, 32, median=15.0, sigma=0.8)]

    at, num_since = next((number, each) for number, each in enumerate(found, start=1) if each)
    assert at <= 24
    assert num_since == pytest.approx(at, abs=3)


def test_after_a_change_the_new_is_what_came() -> None:
    test = ChangeTest()
    for value in drawn(1, 1_000) + drawn(2, 1_000, median=15.0) + drawn(3, 1_000):
        test.add(value)

    assert test.num_alarms == 2


@given(st.lists(st.floats(1e-9, 1e12), max_size=200))
def test_any_values_can_be_counted_and_a_change_is_never_older_than_the_window(values: list[float]) -> None:
    test = ChangeTest(false_alarm_fraction=0.1, window=8, half_life=20.0)
    assert all(0 <= test.add(value) <= 8 for value in values)

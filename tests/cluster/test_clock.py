from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Clock, MonotonicClock
from cluster.clock import NO_SKEW, ClockSkew
from policies.errors import ConfigError


def test_the_clock_never_goes_back() -> None:
    clock: Clock = MonotonicClock()

    readings = [clock.now_s() for _ in range(1000)]

    assert all(earlier <= later for earlier, later in pairwise(readings))


@given(st.floats(-1e6, 1e6), st.floats(0.9, 1.1), st.floats(0.0, 1e5))
def test_what_a_clock_shows_is_shown_when_it_says(ahead_s: float, rate: float, at_s: float) -> None:
    clock = ClockSkew(ahead_s, rate)
    assert clock.when_s(clock.shown_s(at_s)) == pytest.approx(at_s, abs=1e-6)
    assert clock.shown_s(clock.when_s(at_s)) >= at_s


@given(st.floats(0.0, 1e9))
def test_a_clock_that_does_not_differ_changes_no_bit(at_s: float) -> None:
    assert NO_SKEW.shown_s(at_s) == NO_SKEW.when_s(at_s) == at_s


def test_a_clock_goes_forward() -> None:
    with pytest.raises(ConfigError, match=r"rate: got 0.0; allowed: more than 0"):
        ClockSkew(rate=0.0)

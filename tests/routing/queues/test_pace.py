import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.queues.queues import MEMORY_S, DrainRate


def test_until_something_was_seen_each_replica_does_a_second_of_work_a_second() -> None:
    assert DrainRate().work_per_s(8) == 8.0


@given(st.floats(0.1, 50), st.floats(0.05, 0.5))
def test_the_pace_of_a_line_in_which_somebody_always_waits_is_found(per_s: float, pause_s: float) -> None:
    drain_rate = DrainRate()
    drain_rate.begins(0.0)
    for number in range(1, int(8 * MEMORY_S / pause_s)):
        drain_rate.moves(per_s * pause_s, number * pause_s)

    assert drain_rate.work_per_s(4) == pytest.approx(per_s, rel=0.05)


def test_time_in_which_nobody_waited_does_not_count() -> None:
    """Ten seconds of waiting at two service-seconds a second, spread over a thousand seconds."""
    drain_rate = DrainRate()
    for number in range(100):
        begin_s = number * 10.0
        drain_rate.begins(begin_s)
        drain_rate.moves(0.2, begin_s + 0.1)

    assert drain_rate.work_per_s(5) == pytest.approx(2.0, rel=0.4)


def test_work_that_did_not_have_to_wait_does_not_count() -> None:
    drain_rate = DrainRate()
    for number in range(100):
        drain_rate.begins(float(number))
        drain_rate.moves(1000.0, float(number))

    assert drain_rate.work_per_s(3) == 3.0


def test_a_line_that_slows_down_is_seen_to() -> None:
    drain_rate = DrainRate()
    drain_rate.begins(0.0)
    for number in range(1, 1000):
        drain_rate.moves(1.0 if number < 500 else 0.1, number * 0.1)

    assert drain_rate.work_per_s(10) == pytest.approx(1.0, rel=0.1)

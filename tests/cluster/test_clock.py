from itertools import pairwise

from cluster import Clock, MonotonicClock


def test_the_clock_never_goes_back() -> None:
    clock: Clock = MonotonicClock()

    readings = [clock.now_s() for _ in range(1000)]

    assert all(earlier <= later for earlier, later in pairwise(readings))

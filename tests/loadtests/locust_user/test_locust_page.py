"""What is worked out for locust's page takes little of the time of the process that sends."""

from typing import Any

from loadtests.locust_user.page import MOST_TIME_FRACTION, Seldom


class Making:
    """Takes as long as it is told, on a clock that nothing else moves."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now_s = 0.0
        self.num_made = 0

    def clock_s(self) -> float:
        return self.now_s

    def make(self) -> list[dict[str, Any]]:
        self.now_s += self.takes_s
        self.num_made += 1
        return [{"requests": self.num_made}]


def test_lines_take_the_same_part_of_the_time_however_many_requests_there_are() -> None:
    for takes_s in (0.001, 0.1, 1.0):
        making = Making(takes_s)
        lines = Seldom(making.make, making.clock_s)
        while making.now_s < 1_000:
            lines()
            making.now_s += 0.01

        assert making.num_made > 1
        assert takes_s * (making.num_made - 1) <= 1.01 * MOST_TIME_FRACTION * making.now_s


def test_lines_are_as_they_were_until_it_is_time_again() -> None:
    making = Making(takes_s=0.01)
    lines = Seldom(making.make, making.clock_s)

    assert lines() == lines() == [{"requests": 1}]
    making.now_s += 0.01 / MOST_TIME_FRACTION
    assert lines() == [{"requests": 2}]

"""A gateway's metrics, as a client reads them."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadtests.watch.gateway_page import MetricsPage, TookTooLong, read, wait_for
from tests.loadtests.metrics_pages import serving

BEFORE = """
# TYPE spillway_attempts counter
spillway_attempts_total{hedge="false",replica="a"} 3.0
spillway_attempts_total{hedge="true",replica="a"} 1.0
spillway_attempts_total{hedge="true",replica="b"} 2.0
# TYPE spillway_requests_open gauge
spillway_requests_open 2.0
"""
AFTER = """
# TYPE spillway_attempts counter
spillway_attempts_total{hedge="false",replica="a"} 10.0
spillway_attempts_total{hedge="true",replica="a"} 1.0
spillway_attempts_total{hedge="false",replica="c"} 4.0
# TYPE spillway_requests_open gauge
spillway_requests_open 0.0
"""


@pytest.fixture
def pages() -> list[str]:
    return [BEFORE, AFTER]


@pytest.fixture
def url(pages: list[str]) -> Iterator[str]:
    with serving(pages) as where:
        yield where


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that runs until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        yield running


def test_samples_are_added_up_by_the_labels_that_are_asked_for() -> None:
    page = MetricsPage.parse(BEFORE)

    assert page.sum("spillway_attempts_total") == 6
    assert page.sum("spillway_attempts_total", hedge="true") == 3
    assert page.by("replica", "spillway_attempts_total", hedge="true") == {"a": 1, "b": 2}
    assert page.sum("spillway_nothing") == 0


def test_what_was_not_there_before_has_grown_from_0() -> None:
    grown = MetricsPage.parse(AFTER).since(MetricsPage.parse(BEFORE))

    assert grown.by("replica", "spillway_attempts_total") == {"a": 7, "c": 4}


def test_the_first_page_that_will_do_is_waited_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    page = wait_for(url, process, lambda page: page.sum("spillway_requests_open") == 0, 60.0, "no open request")

    assert page.sum("spillway_requests_open") == 0


def test_when_none_will_do_in_time_the_error_says_for_what_and_has_the_last_one(
    url: str, process: "subprocess.Popen[bytes]"
) -> None:
    with pytest.raises(TookTooLong, match=r"after 0 s the .* show a unicorn") as caught:
        wait_for(url, process, lambda page: False, 0.0, "a unicorn")

    assert caught.value.page == MetricsPage.parse(BEFORE)


def test_a_deployment_that_ends_is_not_waited_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    process.kill()

    with pytest.raises(RuntimeError, match="ended"):
        wait_for(url, process, lambda page: False, 60.0, "a unicorn")


@pytest.mark.parametrize("pages", [["python_info 1.0\n"]])
def test_a_page_of_somebody_else_is_no_gateways(url: str) -> None:
    with pytest.raises(RuntimeError, match="spillway_requests_open"):
        read(url)

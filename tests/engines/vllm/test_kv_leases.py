"""Until when a decode engine's worker takes blocks for held."""

import pytest

from engines.vllm.nixl.leases import HELD_UNTIL, LeaseWatch, held_for, margin_s, time_of_day_s

LEASE_S = 30.0
NOW_S = 1_000_000.0


@pytest.mark.parametrize(("lease_s", "expected_s"), [(30.0, 5.0), (6.0, 1.0), (5.0, 1.0), (600.0, 100.0)])
def test_a_sixth_of_a_lease_is_left_for_what_clocks_and_messages_take(lease_s: float, expected_s: float) -> None:
    assert margin_s(lease_s) == expected_s


def test_a_handle_says_until_when_its_blocks_are_held() -> None:
    before_s = time_of_day_s()
    params = held_for({"remote_engine_id": "p"}, LEASE_S)
    until_s = params[HELD_UNTIL]
    assert isinstance(until_s, float)
    assert before_s + 25.0 <= until_s <= time_of_day_s() + 25.0
    assert params["remote_engine_id"] == "p"


def test_blocks_are_held_until_then_and_no_longer() -> None:
    watch = LeaseWatch(LEASE_S)
    assert not watch.is_over("q", NOW_S, NOW_S)
    assert watch.is_over("q", NOW_S, NOW_S + 0.1)


def test_blocks_of_which_nobody_has_said_that_are_pulled_as_ever() -> None:
    assert not LeaseWatch(LEASE_S).is_over("q", None, NOW_S)


def test_each_heartbeat_renews_the_lease_of_the_requests_that_it_names() -> None:
    watch = LeaseWatch(LEASE_S)
    watch.renew(["q"], NOW_S)
    assert not watch.is_over("q", NOW_S, NOW_S + 15.0)
    assert watch.is_over("q", NOW_S, NOW_S + 15.1)
    assert watch.is_over("other", NOW_S, NOW_S + 0.1)
    watch.renew(["q"], NOW_S + 10.0)
    assert not watch.is_over("q", NOW_S, NOW_S + 25.0)


def test_a_heartbeat_that_was_sent_early_shortens_no_lease() -> None:
    watch = LeaseWatch(LEASE_S)
    watch.renew(["q"], NOW_S - 20.0)
    assert not watch.is_over("q", NOW_S + 5.0, NOW_S + 5.0)


def test_what_is_over_is_forgotten() -> None:
    watch = LeaseWatch(LEASE_S)
    for number in range(1000):
        watch.renew([f"q{number}"], NOW_S + number)
    assert len(watch._renewed_until_s) <= 16

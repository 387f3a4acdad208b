from collections.abc import Mapping
from itertools import pairwise

import pytest

from policies import ConfigError, PolicyChoice, Role
from routing.config.catalog import build_guard
from routing.fleet.fleet import Fleet
from routing.lanes.guard import BacklogGuard
from routing.lanes.lanes import Lane, TokenRange
from tests.policy_doubles import a_request, replica_info
from tests.tables import for_each

SHORT = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("short",))
LONG = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("long",))
REQUEST = a_request(lane="short")
PARAMS = {"period_s": 0.1, "smooth_s": 0.5, "hold_s": 1.0, "retry_s": 20.0, "retry_max_s": 80.0, "off_ratio": 0.5}


class Watched:
    """A guard, and two pools of one replica each."""

    def __init__(self, role: Role = Role.PREFILL, **params: float) -> None:
        self.guard = BacklogGuard(**{**PARAMS, **params})
        self.fleet = Fleet()
        self.role = role
        self.now_s = 0.0
        for pool in ("short", "long"):
            info = replica_info(pool, role, pool=pool, slots=9)
            self.fleet.replace(pool, role, [info])

    def goes_on(self, backlogs: Mapping[str, int], for_s: float) -> bool:
        """Whether lanes are on after a while with these backlogs, an arrival every 50 ms."""
        for pool, tokens in backlogs.items():
            self.fleet.report(pool, tokens, 0, 0.0)
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += 0.05
            self.guard.look(REQUEST, self.role, (SHORT, LONG), self.fleet, self.now_s)
        return self.guard.are_on(self.role)


GOOD = {"short": 1_000, "long": 9_000}
BAD = {"short": 9_000, "long": 1_000}
EVEN = {"short": 5_000, "long": 5_000}


@for_each("role", [Role.PREFILL, Role.UNIFIED])
def test_lanes_stay_on_while_short_requests_have_less_before_them(role: Role) -> None:
    watched = Watched(role)

    assert watched.goes_on(GOOD, for_s=60)
    assert watched.guard.gauges() == {"lanes_on": 1.0}


@for_each("role", [Role.PREFILL, Role.UNIFIED])
def test_lanes_go_off_when_short_requests_have_more_before_them(role: Role) -> None:
    watched = Watched(role)

    assert not watched.goes_on(BAD, for_s=5)
    assert watched.guard.gauges() == {"lanes_on": 0.0}
    assert all(watched.guard.are_on(each) for each in Role if each is not role), "each role by itself"


def test_decode_lanes_stay_on() -> None:
    assert Watched(Role.DECODE).goes_on(BAD, for_s=60)


def test_a_moment_is_not_enough() -> None:
    watched = Watched()
    watched.goes_on(GOOD, for_s=5)

    assert watched.goes_on(BAD, for_s=0.9)
    assert watched.goes_on(GOOD, for_s=30)


def test_below_the_ratio_nothing_changes() -> None:
    assert Watched().goes_on({"short": 2_000, "long": 8_000}, for_s=60)
    assert Watched().goes_on({"short": 0, "long": 0}, for_s=60), "nothing to compare"


def is_on_with_short_requests_alone(watched: Watched, busy_s: float, for_s: float) -> bool:
    """Whether lanes are on all the time, with one short request a second that takes a while."""
    was_on = True
    for _ in range(round(for_s)):
        was_on &= watched.goes_on({"short": 300, "long": 0}, for_s=busy_s)
        was_on &= watched.goes_on({"short": 0, "long": 0}, for_s=1.0 - busy_s)
    return was_on


def test_with_next_to_nothing_to_do_lanes_stay_on() -> None:
    assert is_on_with_short_requests_alone(Watched(smooth_s=10.0), busy_s=0.1, for_s=120)
    assert not is_on_with_short_requests_alone(Watched(smooth_s=10.0), busy_s=0.6, for_s=120), (
        "a lane that is too small"
    )
    assert not is_on_with_short_requests_alone(Watched(smooth_s=10.0, min_busy_fraction=0), busy_s=0.1, for_s=120)


def test_lanes_that_are_off_go_on_again_and_stay_so_when_the_load_is_gone() -> None:
    watched = Watched(smooth_s=10.0)
    assert not watched.goes_on(BAD, for_s=20)
    watched.goes_on({"short": 0, "long": 0}, for_s=21)

    assert is_on_with_short_requests_alone(watched, busy_s=0.1, for_s=120)


def test_lanes_that_are_off_get_a_trial_after_a_while_and_stay_when_they_win() -> None:
    watched = Watched()
    watched.goes_on(BAD, for_s=5)

    assert not watched.goes_on(EVEN, for_s=15)
    watched.goes_on(EVEN, for_s=1.5)
    assert watched.goes_on(GOOD, for_s=100)


def test_after_each_trial_that_fails_the_next_one_takes_twice_as_long() -> None:
    watched = Watched()
    offs_s = []
    was_on = True
    while watched.now_s < 400.0:
        is_on = watched.goes_on(BAD, for_s=0.1)
        if was_on and not is_on:
            offs_s.append(watched.now_s)
        was_on = is_on

    gaps_s = [later - sooner for sooner, later in pairwise(offs_s)]
    assert gaps_s[:4] == pytest.approx([21, 41, 81, 81], abs=1.0), "off for retry_s and twice that, on for hold_s"


def test_lanes_that_share_all_replicas_of_a_role_are_left_alone() -> None:
    watched = Watched()
    both = Lane(name="both", pools=("short", "long"))
    for number in range(100):
        watched.fleet.report("short", 9_000, 0, 0.0)
        watched.guard.look(REQUEST, watched.role, (both, both), watched.fleet, number * 0.1)

    assert watched.guard.are_on(Role.PREFILL)


@for_each("params", [{"period_s": 0}, {"hold_s": -1}, {"off_ratio": 0}, {"min_busy_fraction": 1}, {"retry_max_s": 1}])
def test_parameters_out_of_range_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"lanes\.guard\.params"):
        build_guard(PolicyChoice(name="backlog", params=params))

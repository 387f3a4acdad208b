import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import AS_ASKED, Degradation, Need, Priority, RequestView
from policies.contracts import DegradationPolicy
from policies.degradation import CapOutput, FromCache, NeverDegrade, OutputTimeLimit
from policies.degradation.pressure import Ramp, pressure
from tests.policies.admission_cases import sized
from tests.policies.built import built, refusal_of
from tests.policy_doubles import DegradeTo, FakeBacklog
from tests.tables import for_each

LINE = FakeBacklog(num_waiting=5, waiting_s=9.0, work_per_s=2.0)
BOTH = {"from_pressure": 0.25, "full_pressure": 0.75}


def at_pressure(of_promise: float) -> FakeBacklog:
    """A line that takes this part of the second in which the first token is promised."""
    return replace(LINE, ahead_s=2.0 * of_promise)


def request(priority: Priority = Priority.STANDARD, *, max_output_tokens: int = 400) -> RequestView:
    """It may take a minute."""
    return replace(sized(due_s=1.0), priority=priority, max_output_tokens=max_output_tokens)


def named(name: str, **params: object) -> DegradationPolicy:
    return built("degradation", name, params).degradation


def capped(policy: DegradationPolicy, of_promise: float, asked: RequestView | None = None) -> float:
    answer = policy.decide(asked or request(), at_pressure(of_promise), 0.0)
    return math.inf if answer == AS_ASKED else answer.max_output_tokens


def test_switched_off_nothing_is_given_up_however_long_the_line_is() -> None:
    assert NeverDegrade().decide(request(), at_pressure(1e9), 0.0) is AS_ASKED


def test_pressure_is_the_wait_over_the_time_that_is_promised() -> None:
    """Three service-seconds, worked off at two a second, before a token that is due after four."""
    assert pressure(sized(due_s=4.0), FakeBacklog(ahead_s=3.0, work_per_s=2.0)) == pytest.approx(0.375)
    assert pressure(sized(due_s=math.inf), FakeBacklog(ahead_s=3.0)) == 0.0


def test_pressure_knows_lines_that_do_not_move_and_promises_of_nothing() -> None:
    assert pressure(sized(), FakeBacklog(ahead_s=1.0, work_per_s=0.0)) > 1e6
    assert pressure(sized(due_s=0.0), FakeBacklog(ahead_s=1.0)) > 1e6
    assert pressure(sized(due_s=0.0), FakeBacklog(ahead_s=0.0)) == 0.0


@for_each(("of_promise", "part"), [(0.0, 0.0), (0.25, 0.0), (0.5, 0.5), (0.75, 1.0), (9.0, 1.0)])
def test_the_ramp_rises_from_nothing_to_everything(of_promise: float, part: float) -> None:
    assert Ramp(0.25, 0.75).severity(request(), at_pressure(of_promise)) == pytest.approx(part)


@for_each(
    ("of_promise", "tokens"),
    [(0.0, math.inf), (0.25, math.inf), (0.3, math.inf), (0.5, 128), (0.625, 85), (0.75, 64), (5.0, 64)],
)
def test_an_answer_gets_shorter_down_to_the_cap_of_its_class(of_promise: float, tokens: float) -> None:
    """A tenth up the ramp the bound is ten caps, 640 tokens: more than the request asks for."""
    assert capped(CapOutput(cap_tokens={"standard": 64}, **BOTH), of_promise) == tokens


def test_a_class_without_a_cap_is_answered_in_full() -> None:
    policy = CapOutput(cap_tokens={"sheddable": 8}, **BOTH)
    found = {priority: capped(policy, 9.0, request(priority)) for priority in Priority}
    assert found == {Priority.CRITICAL: math.inf, Priority.STANDARD: math.inf, Priority.SHEDDABLE: 8}


def test_by_default_what_is_critical_is_answered_in_full_and_the_lowest_class_gives_up_the_most() -> None:
    critical, standard, sheddable = (capped(CapOutput(), 9.0, request(each)) for each in Priority)
    assert critical == math.inf
    assert sheddable < standard < math.inf


def test_who_asks_for_less_than_the_cap_is_not_degraded() -> None:
    policy = CapOutput(cap_tokens={"standard": 64}, **BOTH)
    assert capped(policy, 9.0, request(max_output_tokens=64)) == math.inf
    assert capped(policy, 9.0, request(max_output_tokens=65)) == 64


@given(
    cap=st.integers(1, 1000),
    asked=st.integers(1, 10_000),
    pressures=st.tuples(st.floats(0, 10), st.floats(0, 10)).map(sorted),
)
def test_more_pressure_never_means_a_longer_answer_and_something_is_always_left(
    cap: int, asked: int, pressures: list[float]
) -> None:
    policy = CapOutput(cap_tokens={"standard": cap}, **BOTH)
    low, high = (min(asked, capped(policy, each, request(max_output_tokens=asked))) for each in pressures)
    assert min(cap, asked) <= high <= low <= asked


@for_each(("of_promise", "limit_s"), [(0.25, math.inf), (0.27, math.inf), (0.5, 10.0), (0.75, 5.0), (9.0, 5.0)])
def test_an_answer_ends_sooner_down_to_the_limit_of_its_class(of_promise: float, limit_s: float) -> None:
    """At 0.27 the limit would end after the minute that the request may take."""
    answer = OutputTimeLimit(limit_s={"standard": 5.0}, **BOTH).decide(request(), at_pressure(of_promise), 0.0)
    assert answer == (AS_ASKED if limit_s == math.inf else Degradation(output_time_limit_s=answer.output_time_limit_s))
    assert answer.output_time_limit_s == pytest.approx(limit_s)


def test_a_class_without_a_limit_is_answered_in_full_time() -> None:
    policy = OutputTimeLimit(limit_s={"sheddable": 1.0}, **BOTH)
    limits_s = [policy.decide(request(each), at_pressure(9.0), 0.0).output_time_limit_s for each in Priority]
    assert limits_s == [math.inf, math.inf, 1.0]


@for_each(("of_promise", "may"), [(0.0, False), (0.24, False), (0.25, True), (9.0, True)])
def test_a_known_answer_does_from_a_pressure_on(of_promise: float, may: bool) -> None:
    known = replace(request(), has_cached_answer=True)
    assert FromCache(from_pressure=0.25).decide(known, at_pressure(of_promise), 0.0).may_use_cache is may


def test_by_default_a_known_answer_always_does_and_an_unknown_one_never() -> None:
    assert FromCache().decide(replace(request(), has_cached_answer=True), FakeBacklog(), 0.0).may_use_cache
    assert FromCache().decide(request(), at_pressure(9.0), 0.0) is AS_ASKED


@for_each(
    ("name", "params", "missing"),
    [
        ("from_cache", {}, Need.RESPONSE_CACHE),
        ("all_of", {"policies": ["never_degrade", "output_time_limit"]}, Need.SERVICE_RATES),
    ],
)
def test_a_host_must_meet_the_needs_of_a_policy_and_of_each_of_several(
    name: str, params: dict[str, Any], missing: Need
) -> None:
    error = refusal_of("degradation", name, params, provided=frozenset(Need) - {missing})
    assert f"missing: ['{missing}']" in error.allowed


@for_each(("of_promise", "lane"), [(0.0, ""), (0.19, ""), (0.2, "small"), (9.0, "small")])
def test_requests_go_to_the_fallback_from_a_pressure_on(of_promise: float, lane: str) -> None:
    assert named("to_fallback", lane="small").decide(request(), at_pressure(of_promise), 0.0).lane == lane


def test_only_classes_that_are_named_go_to_the_fallback() -> None:
    some, default = named("to_fallback", lane="small", classes=["sheddable"]), named("to_fallback", lane="small")
    found = {each: [p.decide(request(each), at_pressure(9.0), 0.0).lane for p in (some, default)] for each in Priority}
    assert list(found.values()) == [["", ""], ["", "small"], ["small", "small"]]


def test_of_several_policies_the_strictest_bounds_count() -> None:
    less = f"{DegradeTo.__module__}:DegradeTo"
    policy = named(
        "all_of",
        policies=[
            {"name": less, "params": {"max_output_tokens": 90, "output_time_limit_s": 4.0}},
            "never_degrade",
            {"name": less, "params": {"output_time_limit_s": 3.0, "may_use_cache": True, "lane": "small"}},
            {"name": less, "params": {"max_output_tokens": 99, "lane": "smaller"}},
        ],
    )

    assert policy.decide(request(), LINE, 0.0) == Degradation(
        max_output_tokens=90, output_time_limit_s=3.0, may_use_cache=True, lane="small"
    )
    assert policy.decide(request(Priority.CRITICAL), LINE, 0.0) is AS_ASKED

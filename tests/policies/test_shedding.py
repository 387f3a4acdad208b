"""Who is given up: the same sessions everywhere, from the lowest class upwards, and no more than has to be."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, cycle
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies import Keep
from policies.decisions import Reason, Reject
from policies.load_reports import AdmissionThresholds, ControlLaw, FleetEstimate
from policies.shedding import AdaptiveThrottle, NeverShed, Pid, PriorityThreshold, SharedFraction
from policies.shedding.fraction_law import check_law, fraction_of, integral_after
from policies.shedding.rank import key_of, shed_rank
from policies.shedding.session_passes import MOST_NEWS, SessionPasses
from policies.shedding.thresholds import MOST_THRESHOLD, thresholds_for
from policies.shedding.work_threshold import WorkThreshold
from policies.views import Priority, RequestView
from tests.policies.admission_cases import admitted, answering, broke_off, hosted, sized, started
from tests.policy_doubles import FakeBacklog, a_request
from tests.tables import for_each

EMPTY = FakeBacklog()
LAW = ControlLaw(period_s=0.25, target_s=0.5, proportional_gain=0.1, integral_gain_per_s=0.01, salt_period_s=1800.0)
KEEP_ALL, SHED_ALL = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
NOTE = (0.0, 1.0, 0.0)


def of_session(number: int, *, priority: Priority = Priority.STANDARD, request_id: str = "") -> RequestView:
    return replace(sized(request_id or f"q{number}"), session_id=f"session {number}", priority=priority)


def heard(by_class: tuple[float, ...], *, version: int = 1, epoch: int = 1, **more: Any) -> AdmissionThresholds:
    estimate = FleetEstimate(demand_per_s=(1.0, 10.0, 1.0), capacity_per_s=6.0)
    return AdmissionThresholds(
        epoch=epoch, version=version, valid_for_s=0.75, by_class=by_class, estimate=estimate, **{"salt": 7, **more}
    )


def told(by_class: tuple[float, ...] = (0.0, 0.5, 0.98), **more: Any) -> Any:
    policy = hosted(SharedFraction())
    policy.take_in(heard(by_class, **more), 0.0)
    return policy


def is_kept(policy: Any, request: RequestView, now_s: float = 0.0, backlog: FakeBacklog = EMPTY) -> bool:
    return isinstance(policy.decide(request, backlog, now_s), Keep)


def backlog_of(wait_s: float, now_s: float) -> FakeBacklog:
    return FakeBacklog(num_waiting=5, waiting_s=1.0, oldest_arrival_s=now_s - wait_s)


def offer(
    policy: Any, *, per_s: int, seconds: float, wait_s: float, from_s: float = 0.0, sessions: Iterable[int] = ()
) -> float:
    """Sessions that come one after the other; returns the part that was given up in the last second."""
    numbers, answers = iter(sessions or cycle(range(997))), []
    for number in range(int(per_s * seconds)):
        now_s = from_s + number / per_s
        answers.append(is_kept(policy, of_session(next(numbers)), now_s, backlog_of(wait_s, now_s)))
    return 1.0 - sum(answers[-per_s:]) / per_s


def test_never_shed_keeps_a_request_even_after_its_deadline() -> None:
    request = a_request()
    assert NeverShed().decide(request, EMPTY, request.deadline_s + 1.0) == Keep()
    assert NeverShed().shed_fraction(0.0) == 0.0


def test_a_session_stands_where_it_stands_whatever_it_asks() -> None:
    asked_twice = of_session(3, request_id="a"), of_session(3, request_id="b")
    assert key_of(asked_twice[0]) == key_of(asked_twice[1]) != key_of(of_session(4))


def test_a_session_that_names_another_tenants_stands_elsewhere() -> None:
    own, others, nobodys = (replace(of_session(3), tenant=tenant) for tenant in ("a", "b", ""))
    assert len({key_of(each) for each in (own, others, nobodys)}) == 3


def test_a_request_by_itself_stands_where_its_retries_stand() -> None:
    first, again, other = (
        replace(a_request(name), logical_request_id=intent) for name, intent in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert key_of(first) == key_of(again) != key_of(other)
    assert key_of(a_request("a")) != key_of(a_request("b"))


@given(st.integers(0, 2**63), st.integers(0, 1000))
def test_everybody_stands_between_0_and_1(key: int, salt: int) -> None:
    assert 0.0 <= shed_rank(key, salt) < 1.0


def test_another_salt_has_others_stand_low() -> None:
    keys = [key_of(of_session(number)) for number in range(2000)]
    low = [{key for key in keys if shed_rank(key, salt) < 0.3} for salt in (1, 2)]
    assert all(0.26 < len(each) / 2000 < 0.34 for each in low)
    assert 0.07 < len(low[0] & low[1]) / 2000 < 0.11  # as of two draws that know nothing of each other


def test_a_class_that_nobody_is_in_costs_nothing() -> None:
    assert thresholds_for(0.5, (1.0, 1.0, 0.0)) == pytest.approx((0.02, 0.98, 0.0))


@example(0.5, (1.8984375, 5e-324, 22.0))
@given(st.floats(0.0, 0.98), st.tuples(*[st.floats(0.0, 1e6)] * 3))
def test_what_is_cut_off_is_the_fraction(fraction: float, demand: tuple[float, float, float]) -> None:
    thresholds = thresholds_for(fraction, demand)
    gone = sum(threshold * work for threshold, work in zip(thresholds, demand, strict=True))

    assert gone == pytest.approx(fraction * sum(demand), rel=1e-6, abs=1e-6)
    assert all(0.0 <= each <= MOST_THRESHOLD + 1e-9 for each in thresholds)
    lower_is_left = [thresholds[rank + 1] < MOST_THRESHOLD - 1e-9 and demand[rank + 1] > 1e-6 for rank in (0, 1)]
    assert not any(thresholds[rank] > 1e-6 and lower_is_left[rank] for rank in (0, 1))


def estimate(load: float, wait_ratio: float = 1.0, integral: float = 0.0) -> FleetEstimate:
    return FleetEstimate(
        demand_per_s=(0.0, 4.0 * load, 0.0), capacity_per_s=4.0, wait_ratio=wait_ratio, integral=integral
    )


@for_each(("load", "fraction"), [(0.5, 0.0), (1.0, 0.0), (2.0, 0.5), (4.0, 0.75)])
def test_what_is_more_than_the_capacity_goes_at_once(load: float, fraction: float) -> None:
    assert fraction_of(estimate(load), LAW) == pytest.approx(fraction)


def test_a_wait_above_the_target_takes_more_and_one_below_takes_less() -> None:
    assert fraction_of(estimate(2.0, 1.25), LAW) == pytest.approx(0.525)
    assert fraction_of(estimate(2.0, 0.0), LAW) == pytest.approx(0.4)
    assert fraction_of(estimate(2.0, 100.0), LAW) == pytest.approx(0.55)  # half a target, and no more


def test_nothing_is_given_up_while_nobody_asks() -> None:
    assert fraction_of(FleetEstimate(wait_ratio=9.0), LAW) == 0.0


def test_the_integral_stands_still_at_the_bounds() -> None:
    assert integral_after(estimate(0.5, 0.0), LAW, 1.0) == 0.0
    assert integral_after(estimate(2.0, 1.5), LAW, 1.0) == pytest.approx(0.005)
    assert integral_after(estimate(2.0, 2.0, 0.2), LAW, 1.0) == pytest.approx(0.2)


@given(st.floats(0.05, 2.0), st.floats(0.1, 5.0), st.floats(0.5, 5.0))
def test_gains_that_pass_bring_a_queue_behind_a_delay_to_its_target(
    period_s: float, target_s: float, load: float
) -> None:
    gain = 0.52 * target_s / (load * 2 * period_s)
    law = replace(LAW, period_s=period_s, target_s=target_s, proportional_gain=gain, integral_gain_per_s=0.0)
    check_law(law, load)

    step_s, wait_s, fractions = period_s / 20, target_s, [0.0] * 40  # two periods late
    highest_s = 0.0
    for step in range(4000):
        late = fractions.pop(0)
        wait_s = max(0.0, wait_s + (load * (1.0 - late) - 1.0) * step_s)
        fractions.append(1.0 - 1.0 / load + gain * min(wait_s / target_s - 1.0, 0.5))
        highest_s = wait_s if step > 3000 else 0.0
    assert highest_s <= 1.1 * target_s


def test_a_threshold_gives_up_a_twentieth_more_for_each_window_of_waiting() -> None:
    policy = PriorityThreshold()
    assert offer(policy, per_s=400, seconds=2.0, wait_s=1.0) == pytest.approx(0.05, abs=0.03)
    assert offer(policy, per_s=400, seconds=14.0, wait_s=1.0, from_s=2.0) == pytest.approx(0.57, abs=0.08)
    assert policy.shed_fraction(16.0) == pytest.approx(0.57, abs=0.08)  # it stops below a twentieth, at a whole level


def test_a_threshold_lets_everybody_in_again_when_nobody_waits() -> None:
    policy = PriorityThreshold()
    offer(policy, per_s=400, seconds=20.0, wait_s=1.0)
    assert offer(policy, per_s=400, seconds=25.0, wait_s=0.0, from_s=20.0) == 0.0


def test_a_threshold_goes_by_work_and_not_by_requests() -> None:
    line = WorkThreshold(target_s=0.5, window_s=1.0, decrease=0.05, increase=0.01, increase_quiet=0.05)
    for number in range(100):  # the lower half of the class is ten times the work
        line.sheds(1, number / 100, 10.0 if number < 50 else 1.0, 1.0, 0.5)
    line.sheds(1, 0.99, 1.0, 1.0, 1.6)
    gone = [place / 1000 for place in range(1000) if line.sheds(1, place / 1000, 1.0, 1.0, 1.7)]

    assert max(gone) == pytest.approx(0.05 * 551 / 10 / 100, abs=0.012)


def test_a_threshold_never_gives_up_everybody() -> None:
    policy = PriorityThreshold(decrease=1.0)
    offer(policy, per_s=100, seconds=10.0, wait_s=9.0)
    assert offer(policy, per_s=100, seconds=60.0, wait_s=0.0, from_s=10.0) < 1.0


def test_a_controller_brings_a_queue_of_twice_the_capacity_to_its_target() -> None:
    policy, wait_s, per_s = Pid(), 0.0, 200
    for number in range(per_s * 120):
        now_s = number / per_s
        kept = is_kept(policy, of_session(number % 997), now_s, backlog_of(wait_s, now_s))
        wait_s = max(0.0, wait_s + (2.0 * kept - 1.0) / per_s)

    assert wait_s == pytest.approx(0.5, abs=0.25)
    assert policy.shed_fraction(120.0) == pytest.approx(0.5, abs=0.08)


@for_each("make", [PriorityThreshold, Pid])
def test_gateways_whose_clocks_began_days_apart_shed_the_same_sessions(make: Any) -> None:
    def kept(from_s: float, unix_ahead_s: float) -> list[bool]:
        policy = make(unix_ahead_s=unix_ahead_s)
        offer(policy, per_s=200, seconds=5.0, wait_s=1.0, from_s=from_s)
        return [is_kept(policy, of_session(number), from_s + 5.0) for number in range(200)]

    here, there = kept(1_000.0, 1.8e9), kept(346_024.0, 1.8e9 - 345_024.0)
    assert here == there != kept(346_024.0, 0.0)
    assert 0 < sum(here) < 200


def throttled(answered_one_in: int) -> Any:
    policy = hosted(AdaptiveThrottle(rng=Random(1)))
    for number in range(2000):
        request, at_s = sized(f"q{number}"), number / 100
        if not is_kept(policy, request, at_s):
            continue
        if number % answered_one_in == 0:
            policy.observe(admitted(request, at_s))
            policy.observe(answering(request, at_s))
        elif number % 2:
            policy.observe(admitted(request, at_s))
            policy.observe(broke_off(request, at_s))
    return policy


def test_a_throttle_keeps_everybody_while_two_of_three_are_answered() -> None:
    assert throttled(1).shed_fraction(20.0) == 0.0


def test_a_throttle_lets_in_half_as_much_again_as_is_answered() -> None:
    """A fifth of what is let in is answered: of 100 that come, ``1.5 * a`` are let in and ``a`` of them answered."""
    assert throttled(5).shed_fraction(20.0) == pytest.approx(0.9, abs=0.05)


def test_a_throttle_waits_for_the_answers_of_the_first_requests() -> None:
    policy = hosted(AdaptiveThrottle(rng=Random(1)))
    for number in range(50):
        assert is_kept(policy, sized(f"q{number}"), 0.01 * number)
        policy.observe(admitted(sized(f"q{number}"), 0.01 * number))


def test_every_gateway_gives_up_the_same_sessions() -> None:
    gateways = told(), told()
    answers = [[is_kept(policy, of_session(number)) for number in range(1000)] for policy in gateways]
    assert answers[0] == answers[1]
    assert 0.45 < sum(answers[0]) / 1000 < 0.55


def test_who_is_given_up_by_all_is_told_not_to_ask_again() -> None:
    policy = told(SHED_ALL)
    answer = policy.decide(of_session(1), EMPTY, 0.0)
    assert isinstance(answer, Reject)
    assert (answer.reason, answer.may_retry) == (Reason.SHED, False)


def test_a_session_that_was_let_in_goes_on_whatever_the_threshold_has_become() -> None:
    policy = told(KEEP_ALL)
    assert is_kept(policy, of_session(1))
    policy.take_in(heard(SHED_ALL, version=2), 1.0)
    assert is_kept(policy, of_session(1, request_id="its second"), 1.0)
    assert not is_kept(policy, of_session(2), 1.0)


def test_a_session_that_another_gateway_has_let_in_goes_on_here() -> None:
    there, here = told(KEEP_ALL), told(SHED_ALL)
    assert is_kept(there, of_session(1))
    here.take_in(heard(SHED_ALL, version=2, session_passes=there.report(1.0).session_passes), 1.0)
    assert is_kept(here, of_session(1), 1.0)


def test_single_requests_have_no_passes() -> None:
    policy = told(KEEP_ALL)
    assert is_kept(policy, sized("q"))
    assert policy.report(1.0).session_passes == ()


def test_higher_classes_go_by_thresholds_of_their_own() -> None:
    kept = {}
    for priority in Priority:
        policy = told((0.0, 0.5, 0.98))
        kept[priority] = sum(is_kept(policy, of_session(number, priority=priority)) for number in range(1000))

    assert kept[Priority.CRITICAL] == 1000
    assert 450 < kept[Priority.STANDARD] < 550
    assert kept[Priority.SHEDDABLE] < 40


@for_each(
    ("epoch", "version", "counts"),
    [(1, 499, False), (0, 900, False), (2, 1, True)],
    ids=["an older answer", "an earlier coordinator", "a later coordinator"],
)
def test_the_latest_answer_of_the_latest_coordinator_counts(epoch: int, version: int, counts: bool) -> None:
    policy = told((0.0, 0.2, 0.0), version=500)
    policy.take_in(heard((0.0, 0.9, 0.0), version=version, epoch=epoch), 0.1)
    assert policy.thresholds == ((0.0, 0.9, 0.0) if counts else (0.0, 0.2, 0.0))


def test_without_a_word_the_last_thresholds_hold_for_a_while_and_then_its_own_go_on_from_there() -> None:
    policy = told((0.0, 0.5, 0.0))
    frozen = [is_kept(policy, of_session(number), 5.7, backlog_of(0.5, 5.7)) for number in range(500)]
    alone = offer(policy, per_s=100, seconds=5.0, wait_s=0.5, from_s=6.0, sessions=count(1000))

    assert 0.4 < sum(frozen) / 500 < 0.6
    assert alone == pytest.approx(5 / 12, abs=0.1)  # of the work, now that standard requests are all there is
    assert policy.shed_fraction(11.0) == pytest.approx(5 / 12, abs=0.05)


def test_a_gateway_alone_gives_up_more_the_longer_its_requests_wait() -> None:
    fractions = []
    for wait_s in (0.25, 0.5, 1.0, 1.5):
        policy = told((0.0, 0.5, 0.0))
        offer(policy, per_s=100, seconds=8.0, wait_s=wait_s, from_s=6.0)
        fractions.append(policy.shed_fraction(14.0))

    around = 5 / 12
    assert fractions == pytest.approx([around - 0.125, around, around + 0.25, around + 0.5], abs=0.02)


def test_a_gateway_alone_lets_everybody_in_when_nobody_waits_any_more() -> None:
    policy = told((0.0, 1.0, 1.0))
    offer(policy, per_s=100, seconds=40.0, wait_s=0.0, from_s=6.0)
    assert policy.shed_fraction(46.0) == 0.0


def test_who_is_refused_by_a_gateway_alone_may_ask_another() -> None:
    policy = told((0.0, 0.98, 0.0))
    answers = [policy.decide(of_session(number), backlog_of(0.5, 9.0), 9.0) for number in range(100)]
    assert any(isinstance(each, Reject) and each.may_retry for each in answers)


def test_a_gateway_that_has_never_heard_of_a_coordinator_decides_alone() -> None:
    policy = hosted(SharedFraction())
    assert offer(policy, per_s=400, seconds=1.0, wait_s=0.0) == 0.0
    assert 0.4 < offer(policy, per_s=400, seconds=10.0, wait_s=1.5, from_s=1.0, sessions=count(1000)) < 0.6


def test_a_report_says_what_would_have_come_had_nobody_been_given_up() -> None:
    policy = told((0.0, 0.5, 0.0))
    for number in range(4000):
        policy.decide(replace(sized(f"q{number}"), logical_request_id=str(number)), backlog_of(0.25, 1.0), 1.0)
    report = policy.report(2.0)

    assert report.demand_s[1] == pytest.approx(4000 * 0.1, rel=0.05)
    assert report.first_s[1] == pytest.approx(2000 * 0.1, rel=0.05)
    assert report.num_first == round(report.first_s[1] / 0.1)
    assert report.saturated_fraction == 1.0
    assert report.wait_ratio == pytest.approx(0.5)
    assert policy.report(3.0).demand_s == (0.0, 0.0, 0.0)


def test_retries_of_those_given_up_do_not_count_as_demand() -> None:
    policy = told((0.0, 0.5, 0.0))
    for number in range(2000):
        for attempt in range(1 if is_kept(policy, of_session(number), 1.0) else 4):
            policy.decide(of_session(number, request_id=f"{number}-{attempt}"), EMPTY, 1.0)
    assert policy.report(2.0).demand_s[1] == pytest.approx(2000 * 0.1, rel=0.08)


def test_the_first_report_is_about_the_time_in_which_there_was_somebody() -> None:
    late, idle = SharedFraction(), SharedFraction()
    late.decide(of_session(1), EMPTY, 86_400.0)
    assert late.report(86_400.2).interval_s == pytest.approx(0.2)
    assert idle.report(86_400.2).interval_s == 0.0
    assert idle.report(86_400.5).interval_s == pytest.approx(0.3)


def test_what_sessions_bring_later_counts_by_how_many_began_with_them() -> None:
    policy = hosted(SharedFraction())
    known = replace(heard(KEEP_ALL).estimate, first_per_s=(0.0, 0.4, 0.0))
    policy.take_in(replace(heard(KEEP_ALL), estimate=known), 0.0)
    for number in (1, 1, 1, 2):
        request = of_session(number)
        policy.decide(request, EMPTY, 1.0)
        policy.observe(admitted(request))
    policy.decide(of_session(2), EMPTY, 1.0)  # and is refused by admission

    assert policy.report(2.0).later_s[1] == pytest.approx(2 * 0.1 / 0.4)


def test_a_report_says_what_was_sent_to_replicas() -> None:
    policy = told(KEEP_ALL)
    for number in range(10):
        request = sized(f"q{number}", prefill_s=0.2)
        policy.decide(request, EMPTY, 0.0)
        policy.observe(admitted(request))
        policy.observe(started(request, 0.5) if number < 7 else broke_off(request, 0.5))

    assert policy.report(1.0).started_s == pytest.approx(7 * 0.2)


def test_what_is_given_up_shows_as_a_fraction_of_all_work() -> None:
    assert told((0.0, 0.5, 1.0)).shed_fraction(0.1) == pytest.approx((5.0 + 1.0) / 12.0)
    assert told(KEEP_ALL).shed_fraction(0.1) == 0.0


def test_a_pass_lasts_as_long_as_it_is_used() -> None:
    session_passes = SessionPasses(idle_s=10.0, most=100)
    session_passes.give(1, NOTE, 0.0)
    assert [session_passes.show(1, now_s) for now_s in (9.0, 18.0, 29.0)] == [NOTE, NOTE, ()]


def test_the_pass_that_was_used_longest_ago_goes_first() -> None:
    session_passes = SessionPasses(idle_s=1000.0, most=2)
    session_passes.give(1, NOTE, 0.0)
    session_passes.give(2, NOTE, 1.0)
    session_passes.show(1, 2.0)
    session_passes.take_in((3,), NOTE, 3.0)

    assert [session_passes.show(key, 4.0) for key in (1, 2, 3)] == [NOTE, (), NOTE]
    assert len(session_passes) == 2


def test_news_are_told_once_and_are_bounded() -> None:
    session_passes = SessionPasses(idle_s=1000.0, most=10**6)
    for key in range(MOST_NEWS + 5):
        session_passes.give(key, NOTE, 0.0)
    session_passes.take_in((10**9,), NOTE, 0.0)

    assert session_passes.news() == tuple(range(5, MOST_NEWS + 5))
    assert session_passes.news() == ()

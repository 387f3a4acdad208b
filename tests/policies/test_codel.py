from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from policies import Admit, Need, PolicyChoice, Reason, Reject, Role
from policies.admission import Codel
from policies.decisions import StartDecision
from policies.signals import Signal
from tests.policies.admission_cases import sized
from tests.policy_doubles import FakeBacklog
from tests.routing.dialogue import Dialogue, refused

BACKLOG = FakeBacklog(num_waiting=3, waiting_s=6.0, work_per_s=2.0)
"""Intervals of :func:`sized` requests are one second, and what is worth starting has waited half of it."""


class CodelOfUnknownEngines(Codel):
    """The same where nobody knows how fast engines are."""

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()


def starts(policy: Codel, now_s: float, waited_s: float, **size: object) -> StartDecision:
    """The head of the line, which has a second for its first token, may start?"""
    return policy.start(sized(arrival_s=now_s - waited_s, **size), BACKLOG, now_s, None)  # type: ignore[arg-type]


def overloaded(lane: str = "all") -> Codel:
    """After an interval in which nobody waited less than 0.3 s."""
    policy = Codel()
    for now_s in (0.0, 0.5, 1.0):
        assert starts(policy, now_s, 0.3, lane=lane) == Admit()
    return policy


def test_everybody_comes_in() -> None:
    assert overloaded().decide(sized(), BACKLOG, 2.0) == Admit()


def test_after_an_interval_without_a_short_wait_whoever_waited_twice_the_target_is_dropped() -> None:
    policy = overloaded()
    assert starts(policy, 1.1, 0.51) == Reject(reason=Reason.QUEUE_FULL, retry_after_s=3.0)
    assert starts(policy, 1.2, 0.49) == Admit()


def test_one_short_wait_in_the_interval_is_enough() -> None:
    policy = Codel()
    for now_s, waited_s in ((0.0, 0.6), (0.5, 0.2), (0.8, 0.6), (1.0, 0.6)):
        assert starts(policy, now_s, waited_s) == Admit()
    assert starts(policy, 1.1, 0.9) == Admit()


def test_the_overload_is_over_with_the_first_interval_that_had_a_short_wait() -> None:
    policy = overloaded()
    assert starts(policy, 1.5, 0.1) == Admit()
    assert starts(policy, 2.0, 0.6) == Admit()
    assert starts(policy, 2.5, 0.6) == Admit()


def test_whose_first_token_is_overdue_is_dropped_in_any_case() -> None:
    assert starts(Codel(), 9.0, 0.999) == Admit()
    assert starts(Codel(), 9.0, 1.0) == Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=3.0)


def test_waits_are_shares_of_what_each_was_promised() -> None:
    policy = overloaded()
    assert starts(policy, 1.1, 4.9, due_s=10.0) == Admit()
    assert isinstance(starts(policy, 1.2, 5.1, due_s=10.0), Reject)


def test_each_lane_has_an_overload_of_its_own() -> None:
    policy = overloaded(lane="long")
    assert starts(policy, 1.1, 0.9, lane="short") == Admit()
    assert isinstance(starts(policy, 1.1, 0.9, lane="long"), Reject)


def test_a_request_that_nobody_has_classified_has_until_its_deadline() -> None:
    policy, request = Codel(), sized(due_s=0.0)
    assert policy.start(request, BACKLOG, 59.9, None) == Admit()
    assert isinstance(policy.start(request, BACKLOG, 60.0, None), Reject)


def test_a_dispatcher_refuses_at_the_head_of_the_line_and_sends_the_next() -> None:
    talk = Dialogue(admission=PolicyChoice(name=f"{__name__}:CodelOfUnknownEngines")).replicas(
        Role.UNIFIED, "a", slots=1
    )
    talk.arrives("running")
    talk.arrives("late", budget_s=8.0)
    talk.at(6.0).arrives("fresh")
    assert talk.sends == []

    talk.at(8.0).finishes("running.0")

    assert talk.sends == ["fresh.0 unified to a"]
    assert talk.responses["late"] == refused(Reason.DEADLINE_UNREACHABLE, 0.0, to="late")


@given(waits_s=st.lists(st.floats(0.0, 0.999), min_size=2, max_size=60))
def test_nobody_is_dropped_who_waited_less_than_half_nor_before_a_whole_interval(waits_s: list[float]) -> None:
    policy = Codel()
    for index, waited_s in enumerate(waits_s):
        verdict = starts(policy, now_s := index * 0.1, waited_s)
        assert verdict == Admit() or (waited_s > 0.5 and now_s >= 1.0 - 1e-9)

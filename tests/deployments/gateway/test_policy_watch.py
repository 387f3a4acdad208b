"""Policies that never return are ended, wherever they are, and nothing else is: with a real thread and a real clock."""

import threading
from collections.abc import Callable, Iterator

import pytest

from cluster.clock import MonotonicClock
from deployments.gateway.watches.policy_watch import PolicyWatch
from routing.breakers.breaker import Breaker, FailureKind, PolicyFailure
from tests.tables import for_each

PATIENCE_S = 0.05
NOW_S = MonotonicClock().now_s


def loops() -> str:
    while True:
        pass


def catches_every_exception() -> str:
    while True:
        try:
            int("x")
        except Exception:
            continue


def catches_everything_once() -> str:
    try:
        loops()
    except BaseException:
        return loops()
    raise AssertionError("it never returns")


def calls_itself() -> str:
    return "".join(calls_itself_in_vain(each) for each in iter(int, 1))


def calls_itself_in_vain(number: int) -> str:
    return str(number) * 0


@pytest.fixture
def watch() -> Iterator[PolicyWatch]:
    found = PolicyWatch(NOW_S, PATIENCE_S)
    yield found
    found.close()


def behind(watch: PolicyWatch) -> tuple[Breaker, list[PolicyFailure]]:
    failures = list[PolicyFailure]()
    return Breaker("balancing", "own:Policy", failures.append, NOW_S, 1e9, watch=watch), failures


@for_each("never_returns", [loops, catches_every_exception, catches_everything_once, calls_itself])
def test_a_policy_that_never_returns_is_ended_and_left_out_at_once(never_returns: Callable[[], str]) -> None:
    watch = PolicyWatch(NOW_S, PATIENCE_S)
    breaker, failures = behind(watch)
    assert breaker.ask(never_returns, lambda _: True, lambda: "instead") == "instead"
    assert [each.kind for each in failures] == [FailureKind.STUCK]
    assert breaker.is_open
    watch.close()


def test_one_that_never_hears_the_end_of_what_it_is_told_is_ended_too(watch: PolicyWatch) -> None:
    breaker, failures = behind(watch)
    breaker.tell(loops)
    assert [each.kind for each in failures] == [FailureKind.STUCK]


def test_an_answer_whose_look_takes_for_ever_is_ended_too(watch: PolicyWatch) -> None:
    breaker, failures = behind(watch)
    assert breaker.ask(lambda: "fine", lambda _: bool(loops()), lambda: "instead") == "instead"
    assert [each.kind for each in failures] == [FailureKind.STUCK]


def test_nothing_is_raised_outside_of_a_policy_whenever_its_time_is_over() -> None:
    """Answers that take just as long as they may, so that the end comes before, while and after it is told."""
    watch = PolicyWatch(NOW_S, 0.002)
    breaker, failures = behind(watch)
    answers = list[str]()
    for number in range(400):
        until_s = NOW_S() + 0.0019 + number * 1e-6

        def takes_its_time(until_s: float = until_s) -> str:
            while NOW_S() < until_s:
                pass
            return "fine"

        breaker._num_left_out = 0
        answers.append(breaker.ask(takes_its_time, lambda _: True, lambda: "instead"))
        for _ in range(2_000):  # where something that is raised too late would come out
            pass
    watch.close()
    assert answers.count("instead") == len(failures)
    assert {each.kind for each in failures} <= {FailureKind.STUCK}
    assert len(answers) == 400


def test_who_asks_nothing_has_no_thread_that_looks() -> None:
    def looking() -> int:
        return sum(each.name == "policy watch" for each in threading.enumerate())

    before = looking()
    watch = PolicyWatch(NOW_S, PATIENCE_S)
    assert looking() == before
    watch.close()

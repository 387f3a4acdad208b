"""When a policy of somebody's own is asked, and what is answered in its place."""

import pytest

from routing.breakers.breaker import ASKS_LEFT_OUT, Breaker, FailureKind, PolicyFailure
from tests.routing.breakers.misbehaving import EXCEPTIONS, Unshowable


class Told:
    """A breaker, what it has told, and the time that its policies take."""

    def __init__(self) -> None:
        self.failures: list[PolicyFailure] = []
        self.now_s = 0.0
        self.num_asked = 0
        self.breaker = Breaker("balancing", "own:Policy", self.failures.append, lambda: self.now_s, 0.05)

    def ask(self, answer: object, took_s: float = 0.0) -> object:
        def call() -> object:
            self.num_asked += 1
            self.now_s += took_s
            if isinstance(answer, type) and issubclass(answer, BaseException):
                raise answer
            return answer

        return self.breaker.ask(call, lambda given: given == "fine", lambda: "instead")

    @property
    def kinds(self) -> list[FailureKind]:
        return [each.kind for each in self.failures]


def test_what_a_policy_may_answer_is_its_answer() -> None:
    told = Told()
    assert told.ask("fine") == "fine"
    assert told.failures == []


@pytest.mark.parametrize("error", EXCEPTIONS)
def test_whatever_a_policy_raises_another_answer_is_given(error: type[BaseException]) -> None:
    told = Told()
    assert told.ask(error) == "instead"
    assert told.kinds == [FailureKind.RAISED]


def test_nonsense_is_no_answer_even_if_nobody_can_look_at_it() -> None:
    told = Told()
    assert [told.ask(each) for each in (None, 42)] == ["instead"] * 2
    assert told.kinds == [FailureKind.NONSENSE] * 2
    assert told.failures[1].said == "42"
    assert told.ask(Unshowable()) == "instead"
    assert told.failures[2].said == "a Leaves that can't be shown"


def test_what_a_policy_is_told_is_no_ask_and_may_fail_as_well() -> None:
    told, heard = Told(), list[int]()
    told.breaker.tell(lambda: heard.append(1))
    for _ in range(3):
        told.breaker.tell(lambda: int("not a number"))
    assert told.breaker.is_open
    told.breaker.tell(lambda: heard.append(2))
    assert heard == [1]
    assert {told.ask("fine") for _ in range(ASKS_LEFT_OUT)} == {"instead"}
    assert told.ask("fine") == "fine"


def test_a_slow_answer_is_an_answer_and_counts_as_a_failure() -> None:
    told = Told()
    assert told.ask("fine", took_s=0.06) == "fine"
    assert told.kinds == [FailureKind.SLOW]
    assert told.failures[0].said == "0.060 s"


def test_after_three_failures_a_policy_is_left_out_for_a_while_and_then_tried_once() -> None:
    told = Told()
    for _ in range(3):
        told.ask(ValueError)
    assert [each.is_left_out for each in told.failures] == [False, False, True]
    assert told.breaker.is_open

    assert {told.ask("fine") for _ in range(ASKS_LEFT_OUT)} == {"instead"}
    assert told.num_asked == 3

    assert told.ask(ValueError) == "instead"
    assert (told.num_asked, told.breaker.is_open) == (4, True)
    for _ in range(ASKS_LEFT_OUT):
        told.ask("fine")
    assert told.ask("fine") == "fine"
    assert not told.breaker.is_open


def test_who_fails_rarely_is_asked_for_ever() -> None:
    told = Told()
    for _ in range(100):
        told.ask(ValueError)
        for _ in range(12):
            told.ask("fine")
    assert told.num_asked == 1300

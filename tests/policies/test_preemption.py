from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from policies import RequestView
from policies.preemption import NeverPreempt, NewestSheddable
from tests.policy_doubles import a_request


@dataclass(frozen=True)
class Running:
    """A sheddable attempt as the policy sees it."""

    num_preemptions: int = 0
    sent_at_s: float = 0.0
    replica_id: str = "a"
    request: RequestView = field(default_factory=a_request)


@dataclass(frozen=True)
class Slots:
    """All places, some of which can be had."""

    running: tuple[Running, ...]
    num_slots: int = 10
    num_taken: int = 0

    def stoppable(self) -> Iterator[Running]:
        return iter(self.running)


def test_switched_off_nobody_is_stopped() -> None:
    assert NeverPreempt().victims(a_request(), 3, Slots((Running(),)), 0.0) == ()


def test_those_that_come_first_are_stopped_as_many_as_are_wanted() -> None:
    running = tuple(Running(sent_at_s=9.0 - number) for number in range(5))
    assert NewestSheddable().victims(a_request(), 2, Slots(running), 10.0) == running[:2]


def test_those_that_have_given_way_often_are_passed_over() -> None:
    tired, fresh = Running(num_preemptions=2), Running(num_preemptions=1)
    assert NewestSheddable(most_preemptions=2).victims(a_request(), 2, Slots((tired, fresh)), 0.0) == (fresh,)


def test_a_floor_that_does_not_come_out_even_in_floats_is_kept_whole() -> None:
    running = (Running(), Running())
    slots = Slots(running, num_slots=100, num_taken=28)
    assert NewestSheddable(floor_fraction=0.29).victims(a_request(), 2, slots, 0.0) == running[:1]


@given(
    num_wanted=st.integers(1, 20),
    num_running=st.integers(0, 20),
    num_taken=st.integers(0, 40),
    floor_fraction=st.floats(0.01, 1.0),
)
def test_requests_above_sheddable_never_get_more_than_their_floor(
    num_wanted: int, num_running: int, num_taken: int, floor_fraction: float
) -> None:
    slots = Slots(tuple(Running() for _ in range(num_running)), num_slots=40, num_taken=num_taken)
    victims = NewestSheddable(floor_fraction=floor_fraction).victims(a_request(), num_wanted, slots, 0.0)
    assert len(victims) <= min(num_wanted, num_running)
    assert not victims or num_taken + len(victims) <= floor_fraction * 40 + 1e-6

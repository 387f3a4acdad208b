from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from cluster.sim.event_queue import EventQueue, Rank
from tests.tables import for_each

TIE_BREAKS = ["FAULT", "TO_REPLICA", "ENGINE", "TO_GATEWAY", "REPORT", "TIMER", "ARRIVAL"]
"""What goes first at the same instant; the simulator's meaning depends on it."""


def test_the_tie_break_table_is_what_the_simulator_was_written_for() -> None:
    assert [rank.name for rank in sorted(Rank)] == TIE_BREAKS


@for_each("ranks", list(permutations(list(Rank)[:4])))
def test_at_the_same_instant_ranks_decide_whatever_the_order_of_pushing(ranks: tuple[Rank, ...]) -> None:
    assert _order([(1.0, rank) for rank in ranks]) == [(1.0, rank) for rank in sorted(ranks)]


def test_at_the_same_instant_and_rank_the_first_pushed_goes_first() -> None:
    events = EventQueue()
    seen: list[str] = []
    for name in ("one", "two", "three"):
        events.push(1.0, Rank.TIMER, lambda now_s, argument: seen.append(argument), name)

    events.run(until_s=2.0)

    assert seen == ["one", "two", "three"]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from(list(Rank)))))
def test_events_come_in_order_of_time_then_rank(pushed: list[tuple[float, Rank]]) -> None:
    assert _order(pushed) == sorted(pushed)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=50))
def test_a_cancelled_event_does_not_happen_and_all_others_do(pushed: list[tuple[float, bool]]) -> None:
    events = EventQueue()
    seen: list[int] = []
    numbers = [
        events.push(at_s, Rank.TIMER, lambda now_s, argument: seen.append(argument), index)
        for index, (at_s, _) in enumerate(pushed)
    ]
    for number, (_, is_cancelled) in zip(numbers, pushed, strict=True):
        if is_cancelled:
            events.cancel(number)

    events.run(until_s=100.0)

    assert sorted(seen) == [index for index, (_, is_cancelled) in enumerate(pushed) if not is_cancelled]
    assert len(events) == 0


def test_cancelled_events_do_not_gather_in_the_heap() -> None:
    events = EventQueue()
    for number in range(100_000):
        events.cancel(events.push(1_000.0 + number, Rank.TIMER, _nothing))

    assert events.num_entries <= 2_048


@given(st.lists(st.floats(0, 5), max_size=30), st.floats(0, 5), st.sampled_from([0.0, 0.3, 1.0, 2.5]))
def test_events_that_are_pushed_meanwhile_take_their_places(times_s: list[float], end_s: float, delay_s: float) -> None:
    events = EventQueue()
    seen: list[float] = []

    def push_another(now_s: float, is_first: bool) -> None:
        seen.append(now_s)
        if is_first:
            events.push(now_s + delay_s, Rank.FAULT, push_another, False)

    for at_s in times_s:
        events.push(at_s, Rank.TIMER, push_another, True)
    events.run(end_s)
    events.run(10.0)

    assert seen == sorted([*times_s, *(at_s + delay_s for at_s in times_s)])


def test_an_event_pushed_at_the_present_instant_happens_at_that_instant() -> None:
    events = EventQueue()
    seen: list[float] = []

    def push_another(now_s: float, argument: object) -> None:
        events.push(now_s, Rank.FAULT, lambda at_s, _: seen.append(at_s))

    events.push(1.0, Rank.ENGINE, push_another)

    last_s = events.run(until_s=5.0)

    assert seen == [1.0]
    assert last_s == 1.0


def test_what_lies_beyond_the_end_does_not_happen() -> None:
    events = EventQueue()
    seen: list[float] = []
    for at_s in (1.0, 2.0, 2.5):
        events.push(at_s, Rank.TIMER, lambda now_s, _: seen.append(now_s))

    events.run(until_s=2.0)

    assert seen == [1.0, 2.0]
    assert len(events) == 1


def _order(pushed: list[tuple[float, Rank]]) -> list[tuple[float, Rank]]:
    events = EventQueue()
    seen: list[tuple[float, Rank]] = []
    for at_s, rank in pushed:
        events.push(at_s, rank, lambda now_s, rank: seen.append((now_s, rank)), rank)
    events.run(until_s=1e9)
    return seen


def _nothing(now_s: float, argument: object) -> None:
    """Never called."""

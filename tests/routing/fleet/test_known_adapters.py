"""What a gateway takes a replica to have loaded: by its reports, and by what it has sent there since."""

from hypothesis import given
from hypothesis import strategies as st

from routing.fleet.known_adapters import KnownAdapters


def known(max_adapters: int = 2) -> KnownAdapters:
    return KnownAdapters(max_adapters)


def test_what_was_sent_there_is_there_and_the_one_least_lately_used_makes_room() -> None:
    adapters = known()
    for name in ("a", "b", "a", "c"):
        adapters.enter(name)
    assert [name in adapters for name in "abc"] == [True, False, True]


def test_a_report_says_what_is_there_but_for_what_is_on_its_way() -> None:
    adapters = known()
    adapters.enter("a")
    adapters.report(("b", "c"), ("b",))
    assert [name in adapters for name in "abc"] == [True, True, False], "c was used least lately"
    adapters.leave("a")
    adapters.report(("b", "c"), ())
    assert [name in adapters for name in "abc"] == [False, True, True]


def test_there_is_a_slot_while_requests_need_fewer_adapters_than_fit() -> None:
    adapters = known()
    adapters.report(("a", "b"), ("a",))
    assert adapters.has_slot_for("c")
    adapters.enter("d")
    assert not adapters.has_slot_for("c"), "one of another gateway's and one of this one's"
    assert adapters.has_slot_for("d")
    adapters.leave("d")
    assert adapters.has_slot_for("c")


def test_a_replica_that_takes_none_is_told_of_none() -> None:
    adapters = known(0)
    adapters.report(("a",), ())
    assert "a" not in adapters
    assert not adapters.has_slot_for("a")


NAMES = st.sampled_from("abcde")


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "report"]), NAMES)), st.integers(1, 4))
def test_never_are_more_known_than_fit(steps: list[tuple[str, str]], max_adapters: int) -> None:
    adapters, open_ = known(max_adapters), list[str]()
    for step, name in steps:
        if step == "enter":
            adapters.enter(name)
            open_.append(name)
            assert name in adapters
        elif step == "leave" and name in open_:
            adapters.leave(name)
            open_.remove(name)
        elif step == "report":
            adapters.report((name,), ())
        assert sum(each in adapters for each in "abcde") <= max_adapters

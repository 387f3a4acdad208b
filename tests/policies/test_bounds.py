"""What binds: the bound that most of the lost time is lost to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity.bounds import LEAST_EXCESS_FRACTION, LEVERS, NOTHING_BINDS, Bound, Verdict, what_binds

LOST = [bound for bound in Bound if bound is not Bound.ENGINE]
SECONDS = st.floats(min_value=0.0, max_value=1e6)


def test_most_of_the_lost_time_names_the_bound() -> None:
    verdict = what_binds({Bound.ENGINE: 1.0, Bound.QUEUE: 3.0, Bound.MEMORY: 1.0})
    assert verdict == Verdict(Bound.QUEUE, 0.75)
    assert verdict.lever == LEVERS[Bound.QUEUE]


def test_a_verdict_says_what_helps() -> None:
    said = str(Verdict(Bound.TRANSFER, 0.625))
    assert said.startswith("what binds: transfer, 62% of the time that requests lose; a faster network")
    assert str(NOTHING_BINDS).startswith("what binds: engine itself; a faster engine")


def test_nothing_binds_where_little_is_lost_or_nothing_is_known() -> None:
    assert what_binds({Bound.ENGINE: 1.0, Bound.QUEUE: LEAST_EXCESS_FRACTION}) == NOTHING_BINDS
    assert what_binds({}) == NOTHING_BINDS


def test_refused_requests_alone_lose_their_time_where_they_were() -> None:
    assert what_binds({Bound.QUEUE: 0.1}) == Verdict(Bound.QUEUE, 1.0)


def test_every_bound_has_a_lever() -> None:
    assert set(LEVERS) == set(Bound)


@given(st.dictionaries(st.sampled_from(Bound), SECONDS))
def test_the_verdict_is_the_largest_loss_and_its_part_of_all(spent_s: dict[Bound, float]) -> None:
    verdict = what_binds(spent_s)
    lost_s = {bound: spent_s.get(bound, 0.0) for bound in LOST}
    if verdict.bound is Bound.ENGINE:
        assert sum(lost_s.values()) <= LEAST_EXCESS_FRACTION * spent_s.get(Bound.ENGINE, 0.0)
    else:
        assert lost_s[verdict.bound] == max(lost_s.values())
        assert verdict.fraction == pytest.approx(lost_s[verdict.bound] / sum(lost_s.values()))

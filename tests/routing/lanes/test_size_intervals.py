import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.lanes.size_intervals import (
    MAX_UTILISATION,
    NUM_BINS,
    BorderSearch,
    SizeHistogram,
    bin_of,
    jensen_shannon_distance,
    lower_edge_tokens,
)

JOBS = st.lists(
    st.tuples(st.integers(1, 1 << 17), st.integers(1, 50)), min_size=1, max_size=12, unique_by=lambda job: job[0]
)


def histogram_of(jobs: dict[int, int]) -> SizeHistogram:
    """Jobs of these many tokens, so many of each; a token takes 0.1 ms."""
    histogram = SizeHistogram()
    for num_tokens, count in jobs.items():
        for _ in range(count):
            histogram.add(num_tokens, num_tokens * 1e-4)
    return histogram


@given(num_tokens=st.integers(1, 1 << 19))
def test_a_length_is_at_or_above_the_edge_of_its_bin_and_below_the_next(num_tokens: int) -> None:
    index = bin_of(num_tokens)

    assert lower_edge_tokens(index) <= num_tokens
    assert index == NUM_BINS - 1 or num_tokens < lower_edge_tokens(index + 1)


@given(jobs=JOBS, servers=st.tuples(st.integers(0, 6), st.integers(1, 6)), start=st.integers(1, NUM_BINS - 1))
def test_one_cut_is_the_best_of_all_there_are(
    jobs: list[tuple[int, int]], servers: tuple[int, int], start: int
) -> None:
    search = BorderSearch(histogram_of(dict(jobs)), 60.0, servers, 1.0)

    best = search.best((start,))

    assert search.cost(best) == min(search.cost((border,)) for border in range(1, NUM_BINS))


def test_two_cuts_are_no_worse_than_any_that_brute_force_finds() -> None:
    jobs = histogram_of({50: 400, 60: 300, 700: 120, 900: 90, 9_000: 10, 12_000: 8})
    search = BorderSearch(jobs, 10.0, (1, 3, 4), 1.0)
    every = [(low, high) for low in range(1, NUM_BINS) for high in range(low, NUM_BINS)]

    least = min(search.cost(each) for each in every)

    assert least[0] == 0.0
    assert search.cost(search.best((10, 70))) == pytest.approx(least)
    assert search.cost(search.best((1, 1))) == pytest.approx(least)


def test_a_cut_that_keeps_a_group_too_busy_is_not_taken_while_there_is_another() -> None:
    search = BorderSearch(histogram_of({100: 9000, 5_000: 100}), 100.0, (1, 2), 1.0)

    too_busy, wait_s = search.cost(search.best((1,)))

    assert too_busy == 0.0
    assert wait_s < math.inf
    assert search.cost((NUM_BINS - 1,)) > (MAX_UTILISATION, 0.0), "everything on one server is too much"


def test_where_nothing_is_acceptable_the_busiest_group_is_as_little_busy_as_it_can_be() -> None:
    search = BorderSearch(histogram_of({100: 1000, 1_000: 100}), 1.0, (2, 2), 1.0)

    (border,) = search.best((1,))

    assert bin_of(100) < border <= bin_of(1_000)


def test_a_group_that_may_borrow_idle_servers_gets_larger_jobs() -> None:
    jobs = histogram_of({100: 500, 1_000: 200, 2_000: 200, 4_000: 100, 8_000: 60})
    strict, borrowing, reserved = (
        BorderSearch(jobs, 60.0, (1, 5), 1.0, lenders=lenders, reserves=(0, reserve))
        for lenders, reserve in (((), 0), (((1,), ()), 0), (((1,), ()), 5))
    )

    assert strict.best((40,)) < borrowing.best((40,))
    assert reserved.best((40,)) == strict.best((40,)), "there is nothing left to lend"


def test_utilisation_is_that_of_the_busiest_group_by_itself() -> None:
    jobs = histogram_of({100: 600, 4_000: 30})
    search = BorderSearch(jobs, 60.0, (1, 4), 1.0, lenders=((1,), ()))
    border = bin_of(1_000)

    short_s, long_s = sum(jobs.work_s[:border]), sum(jobs.work_s[border:])
    assert search.utilisation((border,)) == pytest.approx(max(short_s / 60.0, long_s / 60.0 / 4))
    assert search.utilisation((NUM_BINS - 1,)) == pytest.approx((short_s + long_s) / 60.0)
    assert BorderSearch(jobs, 60.0, (0, 4), 1.0).utilisation((border,)) == math.inf
    assert BorderSearch(jobs, 60.0, (0, 4), 1.0).utilisation((1,)) < 1.0, "nobody is there to wait"


def test_histograms_are_as_far_apart_as_their_proportions() -> None:
    one, other = histogram_of({100: 3, 4_000: 1}), histogram_of({100: 30, 4_000: 10})

    assert jensen_shannon_distance(one.count, other.count) == pytest.approx(0.0, abs=1e-6)
    assert jensen_shannon_distance(one.count, histogram_of({50_000: 5}).count) == pytest.approx(1.0)
    assert jensen_shannon_distance(one.count, SizeHistogram().count) == 0.0

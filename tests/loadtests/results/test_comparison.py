import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.results.comparison import Change, IntervalKind, compare
from loadtests.results.metrics import Better
from tests.tables import for_each

SLOW = [2.0, 2.2, 1.8, 2.1, 1.9]
FAST = [1.0, 1.1, 0.9, 1.0, 1.0]


def test_a_ratio_is_of_the_means_over_seeds() -> None:
    found = compare(FAST, SLOW, Better.LOWER)

    assert [found.policy, found.baseline] == pytest.approx([1.0, 2.0])
    assert found.ratio.value == pytest.approx(0.5)
    assert found.difference.value == pytest.approx(-1.0)
    assert found.ratio.low < 0.5 < found.ratio.high


@for_each(
    ("policy", "baseline", "better", "change", "win_rate"),
    [
        (FAST, SLOW, Better.LOWER, Change.BETTER, 1.0),
        (SLOW, FAST, Better.LOWER, Change.WORSE, 0.0),
        (SLOW, FAST, Better.HIGHER, Change.BETTER, 1.0),
        (FAST, SLOW, Better.HIGHER, Change.WORSE, 0.0),
        (SLOW, SLOW, Better.LOWER, Change.NO_DIFFERENCE, 0.5),
        ([1.0, 3.0, 1.0, 3.0, 2.0], [2.0] * 5, Better.LOWER, Change.NO_DIFFERENCE, 0.5),
    ],
)
def test_a_difference_counts_when_its_interval_leaves_out_0(
    policy: list[float], baseline: list[float], better: Better, change: Change, win_rate: float
) -> None:
    found = compare(policy, baseline, better)

    assert (found.change, found.win_rate) == (change, win_rate)


def test_what_is_neither_good_nor_bad_is_higher_or_lower() -> None:
    found = compare(FAST, SLOW, Better.NEITHER)

    assert found.change is Change.LOWER
    assert math.isnan(found.win_rate)


def test_seeds_are_compared_in_pairs() -> None:
    """Seeds differ a hundredfold, the policy by a tenth on each: unpaired, that would be lost in the noise."""
    baseline = [1.0, 5.0, 20.0, 60.0, 100.0]

    found = compare([0.9 * each for each in baseline], baseline, Better.LOWER)

    assert found.change is Change.BETTER
    assert [found.ratio.low, found.ratio.high] == pytest.approx([0.9, 0.9])


def test_fewer_than_five_seeds_give_a_range_and_no_conclusion() -> None:
    found = compare([1.0, 1.5], [2.0, 2.0], Better.LOWER)

    assert found.ratio.kind is IntervalKind.RANGE_OVER_SEEDS
    assert (found.ratio.low, found.ratio.high) == (0.5, 0.75)
    assert found.change is Change.TOO_FEW_SEEDS


def test_a_ratio_to_nothing_is_not_defined_and_the_difference_still_is() -> None:
    found = compare([0.1] * 5, [0.0] * 5, Better.LOWER)

    assert math.isnan(found.ratio.value)
    assert found.ratio.kind is IntervalKind.NONE
    assert found.change is Change.WORSE


def test_a_ratio_has_no_interval_when_a_seeds_baseline_is_0() -> None:
    found = compare([0.1] * 5, [0.0, 0.1, 0.1, 0.1, 0.1], Better.LOWER)

    assert found.ratio.value == pytest.approx(1.25)
    assert found.ratio.kind is IntervalKind.NONE


def test_a_value_that_is_not_defined_leads_to_no_conclusion() -> None:
    assert compare([math.nan] * 5, [1.0] * 5, Better.LOWER).change is Change.UNDEFINED


@for_each("sizes", [(0, 0), (4, 5)])
def test_every_seed_needs_both(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="values of the policy"):
        compare([1.0] * sizes[0], [1.0] * sizes[1], Better.LOWER)


@for_each(("num_seeds", "least", "most"), [(5, 0.89, 0.97), (8, 0.92, 0.97), (20, 0.92, 0.97)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(num_seeds: int, least: float, most: float) -> None:
    """500 experiments without a difference; with five values the extremes themselves cover no more than 94 %."""
    rng = np.random.default_rng(11)
    experiments = [rng.normal(0.0, 1.0, num_seeds).tolist() for _ in range(500)]

    covered = [compare(each, [0.0] * num_seeds, Better.LOWER).change is Change.NO_DIFFERENCE for each in experiments]

    assert least <= np.mean(covered) <= most


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12),
    st.sampled_from([Better.LOWER, Better.HIGHER]),
)
def test_comparisons_are_the_same_every_time_and_swapping_turns_them_round(
    pairs: list[tuple[float, float]], better: Better
) -> None:
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found, swapped = compare(ours, theirs, better), compare(theirs, ours, better)

    assert compare(ours, theirs, better) == found
    assert found.win_rate + swapped.win_rate == pytest.approx(1)
    assert found.difference.value == pytest.approx(-swapped.difference.value)
    assert found.difference.low == pytest.approx(-swapped.difference.high)
    assert found.difference.low - 1e-9 <= found.difference.value <= found.difference.high + 1e-9

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadtests.workloads.lengths import (
    EMPIRICAL,
    Constant,
    Empirical,
    Exponential,
    Lengths,
    LogNormal,
    Pareto,
    Uniform,
    correlated,
)
from loadtests.workloads.mixtures import Mixture, Part
from loadtests.workloads.streams import Floats, Ints
from policies import ConfigError
from tests.tables import for_each

BELOW_1 = float(np.nextafter(1.0, 0.0))


def draw(lengths: Lengths, count: int = 200_000) -> Ints:
    return lengths.tokens(np.random.Generator(np.random.PCG64(7)).random(count))


def bounds() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(1, 1_000), st.integers(0, 1_000)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def simple_lengths() -> st.SearchStrategy[tuple[Lengths, int, float]]:
    """A distribution, its shortest and its longest."""
    return st.one_of(
        st.integers(1, 1_000).map(lambda each: (Constant(num_tokens=each), each, each)),
        bounds().map(lambda ends: (Uniform(least_tokens=ends[0], most_tokens=ends[1]), *ends)),
        st.tuples(bounds(), st.floats(0.01, 4), st.floats(0, 1)).map(_log_normal),
        st.floats(1.01, 1e5).map(lambda mean: (Exponential(mean_tokens=mean), 1, float("inf"))),
        bounds().map(lambda ends: (Empirical(points=((0, ends[0]), (0.5, ends[0]), (1, ends[1]))), *ends)),
    )


def _log_normal(drawn: tuple[tuple[int, int], float, float]) -> tuple[Lengths, int, float]:
    (least, most), sigma, where = drawn
    median = least + where * (most - least)
    return LogNormal(median_tokens=median, sigma=sigma, least_tokens=least, most_tokens=most), least, most


def mixtures() -> st.SearchStrategy[tuple[Lengths, int, float]]:
    parts = st.lists(st.tuples(st.floats(0.1, 10), simple_lengths()), min_size=1, max_size=4)
    return parts.map(
        lambda drawn: (
            Mixture(parts=tuple(Part(weight=weight, tokens=each[0]) for weight, each in drawn)),
            min(each[1] for _, each in drawn),
            max(each[2] for _, each in drawn),
        )
    )


def probabilities() -> st.SearchStrategy[Floats]:
    return st.lists(st.floats(0, BELOW_1), min_size=1).map(lambda each: np.array([0.0, *sorted(each), BELOW_1]))


@given(simple_lengths(), probabilities())
def test_higher_probabilities_give_longer_lengths_inside_the_bounds(
    drawn: tuple[Lengths, int, float], at: Floats
) -> None:
    lengths, least, most = drawn

    tokens = lengths.tokens(at)

    assert tokens.dtype == np.int64
    assert np.all(np.diff(tokens) >= 0)
    assert least <= tokens[0]
    assert tokens[-1] <= most


@given(mixtures(), probabilities())
def test_a_mixture_stays_inside_its_parts_bounds(drawn: tuple[Lengths, int, float], at: Floats) -> None:
    lengths, least, most = drawn

    tokens = lengths.tokens(at)

    assert tokens.min() >= least
    assert tokens.max() <= most


@given(simple_lengths(), probabilities())
def test_a_length_depends_on_its_own_draw_alone(drawn: tuple[Lengths, int, float], at: Floats) -> None:
    lengths = drawn[0]

    one_by_one = [int(lengths.tokens(at[index : index + 1])[0]) for index in range(len(at))]

    assert lengths.tokens(at).tolist() == one_by_one


def test_every_number_of_a_uniform_is_equally_likely() -> None:
    counts = np.unique(draw(Uniform(least_tokens=3, most_tokens=7)), return_counts=True)

    assert counts[0].tolist() == [3, 4, 5, 6, 7]
    assert np.all(np.abs(counts[1] - 40_000) < 4 * np.sqrt(40_000))


def test_a_log_normal_has_its_median_and_spread_and_nothing_piles_up_at_its_bounds() -> None:
    wide = draw(LogNormal(median_tokens=500, sigma=0.5, most_tokens=1_000_000))
    narrow = draw(LogNormal(median_tokens=500, sigma=0.5, least_tokens=400, most_tokens=600))

    assert np.median(wide) == pytest.approx(500, rel=0.01)
    assert np.std(np.log(wide)) == pytest.approx(0.5, rel=0.01)
    assert np.mean(narrow == 600) < 2 * np.mean(narrow == 599)
    assert np.mean(narrow == 400) < 2 * np.mean(narrow == 401)


@for_each("mean_tokens", [1.5, 20.0, 400.0])
def test_rounding_leaves_the_exponentials_mean_exact_and_its_variation_known(mean_tokens: float) -> None:
    tokens = draw(Exponential(mean_tokens=mean_tokens))

    assert tokens.mean() == pytest.approx(mean_tokens, rel=0.01)
    assert tokens.var() / tokens.mean() ** 2 == pytest.approx(1 - 1 / mean_tokens, rel=0.02)


@for_each("name", sorted(EMPIRICAL))
def test_an_empirical_table_reproduces_its_quantiles(name: str) -> None:
    at, tokens = np.array(EMPIRICAL[name].points).T

    assert EMPIRICAL[name].tokens(at).tolist() == tokens.tolist()


@for_each(
    ("name", "p50", "p90"),
    [
        ("azure-conv-prompt", 1020, 2734),
        ("azure-conv-output", 129, 424),
        ("mooncake-conversation-prompt", 6909, 27367),
        ("mooncake-conversation-output", 350, 597),
    ],
)
def test_draws_from_a_table_have_the_traces_percentiles(name: str, p50: float, p90: float) -> None:
    assert np.quantile(draw(EMPIRICAL[name]), [0.5, 0.9]) == pytest.approx([p50, p90], rel=0.02)


@for_each(
    ("name", "mean_tokens"),
    [
        ("azure-conv-prompt", 1155),
        ("azure-conv-output", 211),
        ("mooncake-conversation-prompt", 12035),
        ("mooncake-conversation-output", 343),
    ],
)
def test_draws_from_a_table_have_the_traces_mean_within_2_percent(name: str, mean_tokens: float) -> None:
    assert draw(EMPIRICAL[name]).mean() == pytest.approx(mean_tokens, rel=0.02)


def test_a_mixture_draws_from_each_part_in_proportion_and_keeps_the_parts_shape() -> None:
    long = Exponential(mean_tokens=1_000)
    mixture = Mixture(parts=(Part(weight=3, tokens=Constant(num_tokens=5)), Part(weight=1, tokens=long)))

    tokens = draw(mixture)
    of_second = tokens[tokens != 5]

    assert len(of_second) / len(tokens) == pytest.approx(0.25, abs=0.004)
    assert of_second.mean() == pytest.approx(1_000, rel=0.02)


@for_each(
    ("make", "field"),
    [
        (lambda: Constant(num_tokens=0), "num_tokens"),
        (lambda: Uniform(least_tokens=0, most_tokens=5), "least_tokens"),
        (lambda: Uniform(least_tokens=6, most_tokens=5), "most_tokens"),
        (lambda: LogNormal(median_tokens=10, sigma=0, most_tokens=20), "sigma"),
        (lambda: LogNormal(median_tokens=30, sigma=1, most_tokens=20), "median_tokens"),
        (lambda: Exponential(mean_tokens=1), "mean_tokens"),
        (lambda: Empirical(points=()), "points"),
        (lambda: Empirical(points=((0, 1),)), "points"),
        (lambda: Empirical(points=((0.1, 1), (1, 5))), "points"),
        (lambda: Empirical(points=((0, 1), (0.9, 5))), "points"),
        (lambda: Empirical(points=((0, 1), (0.5, 7), (1, 5))), "points"),
        (lambda: Empirical(points=((0, 0), (1, 5))), "points"),
        (lambda: Mixture(parts=()), "parts"),
        (lambda: Part(weight=0, tokens=Constant(num_tokens=1)), "weight"),
    ],
)
def test_a_wrong_value_is_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()

    assert caught.value.field == field


def test_a_few_lengths_of_a_heavy_tail_are_most_of_the_tokens() -> None:
    draws = (np.arange(200_000) + 0.5) / 200_000
    tokens = np.sort(Pareto(alpha=1.1, least_tokens=100, most_tokens=100_000).tokens(draws))

    assert 100 == tokens[0] < 50_000 < tokens[-1] <= 100_000
    assert tokens[-20_000:].sum() > 0.55 * tokens.sum()
    is_beyond = [(tokens > length).mean() for length in (1_000, 10_000)]
    assert is_beyond[0] / is_beyond[1] == pytest.approx(10**1.1, rel=0.1), "ten times as long, a power as likely"


@for_each("correlation", [-0.9, -0.3, 0.0, 0.5, 1.0])
def test_correlated_draws_are_uniform_and_follow_as_declared(correlation: float) -> None:
    generator = np.random.default_rng(1)
    own, others = generator.random(50_000), generator.random(50_000)

    joint = correlated(own, others, correlation)

    assert stats.kstest(joint, "uniform").pvalue > 0.001
    expected = 6 / np.pi * np.arcsin(correlation / 2)  # Spearman's rank correlation of a Gaussian copula
    assert stats.spearmanr(joint, others).statistic == pytest.approx(expected, abs=0.02)

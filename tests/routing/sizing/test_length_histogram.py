import numpy as np
import pytest

from routing.sizing.length_histogram import Log2Histogram
from routing.sizing.prompt_ngrams import NgramParams
from tests.routing.length_cases import asked, lognormal_lengths
from tests.tables import for_each


def after(lengths: list[int], predictor: Log2Histogram | None = None, max_output_tokens: int = 4096) -> Log2Histogram:
    """A histogram that has seen these answers, each cut at its bound."""
    predictor = predictor or Log2Histogram()
    view = asked(max_output_tokens=max_output_tokens)
    for each in lengths:
        predictor.observe(view, min(each, view.max_output_tokens))
    return predictor


@for_each("quantile", [0.5, 0.75, 0.9, 0.95])
def test_a_quantile_covers_what_it_promises(quantile: float) -> None:
    """Lognormal lengths, 20,000 of them judged: within 0.03, most of which is the width of a bucket."""
    predictor = after(lognormal_lengths(5_000), Log2Histogram(quantile=quantile, half_life_requests=2_000))

    high = predictor.quantile_tokens(asked(), quantile)

    assert np.mean(np.array(lognormal_lengths(20_000, seed=2)) <= high) == pytest.approx(quantile, abs=0.03)


@for_each("cap", [64, 300, 4096])
def test_the_expected_length_is_the_mean_of_answers_cut_at_the_bound(cap: int) -> None:
    predictor = after(lognormal_lengths(5_000), Log2Histogram(half_life_requests=5_000))

    expected = predictor.predict(asked(max_output_tokens=cap)).tokens

    assert expected == pytest.approx(np.minimum(lognormal_lengths(20_000, seed=2), cap).mean(), rel=0.05)


def test_answers_that_were_cut_do_not_pass_for_short_ones() -> None:
    """Half the clients allow 150 tokens, which cuts two thirds of their answers; the rest allow all."""
    predictor = Log2Histogram(half_life_requests=2_000)
    lengths = lognormal_lengths(4_000)
    for number, length in enumerate(lengths):
        after([length], predictor, max_output_tokens=150 if number % 2 else 100_000)

    expected = predictor.predict(asked(max_output_tokens=100_000)).tokens

    assert expected == pytest.approx(np.mean(lengths), rel=0.1)
    naive = np.mean([min(each, 150) if number % 2 else each for number, each in enumerate(lengths)])
    assert naive < 0.75 * np.mean(lengths), "what taking cut answers for whole ones would give"


def test_beyond_what_was_ever_let_through_half_of_the_answers_end_with_each_doubling() -> None:
    predictor = after([10_000] * 100, max_output_tokens=64)

    assert predictor.predict(asked(max_output_tokens=64)).tokens == 64
    assert 100 < predictor.quantile_tokens(asked(max_output_tokens=10_000), 0.5) < 200


def test_a_single_length_is_expected_within_its_bucket() -> None:
    for length in (1, 2, 3, 5, 100, 1000):
        tokens, high = after([length] * 100).predict(asked())
        assert length / 1.5 <= tokens <= high <= 1.5 * length


def test_it_follows_a_drift_within_a_few_half_lives() -> None:
    predictor = after([40] * 2_000, Log2Histogram(half_life_requests=50))
    assert predictor.predict(asked()).tokens < 60

    after([800] * 50, predictor)
    half_way = predictor.predict(asked()).tokens
    after([800] * 350, predictor)

    assert 300 < half_way < 550
    assert predictor.predict(asked()).tokens > 700


def test_without_forgetting_it_would_not_have_followed() -> None:
    predictor = after([800] * 400, after([40] * 2_000, Log2Histogram(half_life_requests=1e6)))

    assert predictor.predict(asked()).tokens < 250


def test_weights_stay_finite_for_ever() -> None:
    predictor = after(lognormal_lengths(2_000), Log2Histogram(half_life_requests=1, min_samples=1))

    assert 1 <= predictor.predict(asked()).tokens <= 4096


def test_tenants_and_prompt_sizes_are_told_apart() -> None:
    predictor = Log2Histogram()
    for _ in range(50):
        predictor.observe(asked(prompt_tokens=100, tenant="brief"), 10)
        predictor.observe(asked(prompt_tokens=100, tenant="wordy"), 1000)
        predictor.observe(asked(prompt_tokens=3000, tenant="brief"), 200)

    brief, wordy, document = (
        predictor.predict(asked(prompt_tokens=prompt, tenant=tenant)).tokens
        for prompt, tenant in ((100, "brief"), (100, "wordy"), (3000, "brief"))
    )

    assert brief < 16
    assert 100 < document < 300
    assert wordy > 700


def test_who_has_few_samples_is_answered_from_the_prompt_bucket_and_then_from_everybody() -> None:
    predictor = Log2Histogram(min_samples=30)
    for _ in range(100):
        predictor.observe(asked(prompt_tokens=100, tenant="a"), 10)
        predictor.observe(asked(prompt_tokens=3000, tenant="a"), 1000)
    for _ in range(20):
        predictor.observe(asked(prompt_tokens=100, tenant="b"), 3000)

    of_bucket = predictor.predict(asked(prompt_tokens=100, tenant="stranger")).tokens

    assert 300 < of_bucket < 800, "20 answers of 3,000 among 120"
    assert predictor.predict(asked(prompt_tokens=100, tenant="b")).tokens == of_bucket
    assert of_bucket < predictor.predict(asked(prompt_tokens=9, tenant="a")).tokens < 1000
    for _ in range(20):
        predictor.observe(asked(prompt_tokens=100, tenant="b"), 3000)
    assert predictor.predict(asked(prompt_tokens=100, tenant="b")).tokens > 2000


def test_it_remembers_no_more_pairs_than_it_may_and_those_heard_of_last() -> None:
    predictor = Log2Histogram(max_keys=10, min_samples=5)
    for _ in range(20):
        predictor.observe(asked(tenant="regular"), 10)
    for number in range(1_000):
        predictor.observe(asked(tenant=f"invented-{number}"), 1000)
        predictor.observe(asked(tenant="regular"), 10)
        predictor.predict(asked(tenant=f"asked-only-{number}"))

    assert predictor.num_keys == 10
    assert predictor.predict(asked(tenant="regular")).tokens < 16


def test_it_can_have_ngrams_logged_that_it_does_not_look_at() -> None:
    assert Log2Histogram().wants_ngrams is None
    assert Log2Histogram(ngrams={}).wants_ngrams == NgramParams()
    assert Log2Histogram(ngrams={"limit": 8}).wants_ngrams == NgramParams(limit=8)

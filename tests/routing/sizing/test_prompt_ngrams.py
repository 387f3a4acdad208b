import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError
from routing.sizing.prompt_ngrams import NgramParams, hashed_ngrams
from tests.hash_seeds import printed_by
from tests.tables import for_each

KNOWN = (12341380, 4404081, 7396217, 11828206, 168018, 8826036)
TOKENS = st.lists(st.integers(0, 200_000), max_size=200)


@given(token_ids=TOKENS, num_buckets=st.integers(1, 1 << 24), limit=st.integers(2, 200))
def test_hashes_are_in_range_and_no_more_than_the_limit(token_ids: list[int], num_buckets: int, limit: int) -> None:
    hashes = hashed_ngrams(token_ids, num_buckets, limit)

    assert len(hashes) <= limit
    assert bool(hashes) == bool(token_ids)
    assert all(0 <= each < num_buckets for each in hashes)


def test_hashes_are_the_same_on_every_machine() -> None:
    """Trained models depend on these numbers: whoever changes them makes a new version of the model's file."""
    assert hashed_ngrams([1, 2, 128_000], 1 << 24, 6) == KNOWN
    script = "from routing.sizing.prompt_ngrams import hashed_ngrams; print(hashed_ngrams([1, 2, 128_000], 1 << 24, 6))"

    assert {printed_by(seed, script) for seed in ("0", "1")} == {str(KNOWN)}


@given(middle=TOKENS, other=TOKENS)
def test_the_middle_of_a_long_prompt_does_not_matter(middle: list[int], other: list[int]) -> None:
    head, tail = list(range(16)), list(range(50, 66))

    assert hashed_ngrams([*head, *middle, *tail], 4096, 64) == hashed_ngrams([*head, *other, *tail], 4096, 64)


def test_a_word_first_is_another_than_the_same_word_last() -> None:
    first, last = hashed_ngrams([7], 1 << 24, 2)

    assert first != last


def test_the_order_of_two_words_matters() -> None:
    assert set(hashed_ngrams([7, 9], 1 << 24, 6)) != set(hashed_ngrams([9, 7], 1 << 24, 6))


def test_tokens_spread_evenly() -> None:
    """200,000 single tokens on 1,024 buckets: chi square within five standard deviations."""
    hashes = [hashed_ngrams([token], 1024, 2)[0] for token in range(200_000)]
    counts = np.bincount(hashes, minlength=1024)
    expected = len(hashes) / 1024

    chi_square = ((counts - expected) ** 2 / expected).sum()

    assert abs(chi_square - 1023) < 5 * (2 * 1023) ** 0.5


@for_each("params", [{"num_buckets": 0}, {"num_buckets": 1 << 25}, {"limit": 1}, {"limit": 5000}])
def test_sizes_out_of_range_are_refused(params: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        NgramParams(**params)

    assert caught.value.field == f"ngrams.{next(iter(params))}"

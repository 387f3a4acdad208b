"""An engine's blocks, numbered as gateways number prompts, whatever the two sizes are."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from routing.prefixes.block_hashes import block_hashes
from routing.prefixes.engine_blocks import EngineBlocks

SIZES = st.sampled_from([1, 3, 4, 6, 8])
TEXTS = st.lists(st.integers(0, 2), max_size=40)
NOTHING: tuple[int, ...] = ()


class PlainCache:
    """An engine's prefix cache that stores whole texts, and names a block by all the text up to its end."""

    def __init__(self, block_tokens: int, told: EngineBlocks) -> None:
        self.block_tokens = block_tokens
        self.told = told

    def ends(self, text: Sequence[int]) -> range:
        return range(self.block_tokens, len(text) + 1, self.block_tokens)

    def store(self, text: Sequence[int], after: int = 0) -> None:
        """All full blocks but the first ``after``."""
        ids = [tuple(text[:end]) for end in self.ends(text)]
        if ids[after:]:
            begin = after * self.block_tokens
            self.told.store(ids[after:], ids[after - 1] if after else None, text[begin : len(ids) * self.block_tokens])

    def drop(self, text: Sequence[int], kept: int = 0) -> None:
        """All full blocks but the first ``kept``."""
        self.told.drop([tuple(text[:end]) for end in self.ends(text)][kept:])


@given(engine=SIZES, gateway=SIZES, text=TEXTS, first=st.integers(0, 40), kept=st.integers(0, 40))
def test_what_an_engine_keeps_are_the_blocks_that_a_gateway_would_find_there(
    engine: int, gateway: int, text: list[int], first: int, kept: int
) -> None:
    told = EngineBlocks(gateway)
    cache = PlainCache(engine, told)
    wanted = block_hashes(text[: len(text) // engine * engine], gateway)

    cache.store(text[: min(first, len(text)) // engine * engine])
    stored, _ = told.take_changes()
    cache.store(text, after=min(first, len(text)) // engine)
    assert (*stored, *told.take_changes()[0]) == wanted

    cache.drop(text, kept)
    still_there = min(kept, len(text) // engine) * engine // gateway
    assert told.take_changes() == (NOTHING, wanted[still_there:])
    assert told.take_changes() == (NOTHING, NOTHING)


@given(engine=SIZES, gateway=SIZES, texts=st.lists(TEXTS, max_size=5), kept=st.integers(0, 10))
def test_texts_that_begin_alike_have_the_same_blocks_there(
    engine: int, gateway: int, texts: list[list[int]], kept: int
) -> None:
    told = EngineBlocks(gateway)
    cache = PlainCache(engine, told)
    there: set[int] = set()
    for text in texts:
        cache.store(text)
        there |= set(told.take_changes()[0])
        assert there >= set(block_hashes(text[: len(text) // engine * engine], gateway))

    for text in texts:
        cache.drop(text, kept)
    left = [block_hashes(text[: min(kept, len(text) // engine) * engine], gateway) for text in texts]
    assert there - set(told.take_changes()[1]) == {number for blocks in left for number in blocks}


def test_text_that_was_stored_twice_is_gone_when_both_are() -> None:
    told = EngineBlocks(2)
    cache = PlainCache(2, told)
    text = [1, 2, 3, 4]
    cache.store(text)
    cache.store(text)
    stored, _ = told.take_changes()

    cache.drop(text)
    assert told.take_changes() == (NOTHING, NOTHING)
    cache.drop(text)
    assert told.take_changes() == (NOTHING, stored)


def test_what_comes_and_goes_before_anybody_asks_is_told_once_as_it_is_in_the_end() -> None:
    told = EngineBlocks(2)
    cache = PlainCache(2, told)
    cache.store([1, 2])
    cache.drop([1, 2])
    cache.store([3, 4])
    cache.drop([3, 4])
    cache.store([3, 4])

    assert told.take_changes() == (block_hashes([3, 4], 2), block_hashes([1, 2], 2))


def test_a_cleared_cache_has_nothing_and_what_follows_unknown_text_is_left_out() -> None:
    told = EngineBlocks(2)
    cache = PlainCache(2, told)
    cache.store([1, 2, 3, 4])
    stored, _ = told.take_changes()
    told.clear()
    cache.store([1, 2, 3, 4, 5, 6], after=2)
    told.drop([(7, 8)])

    assert told.take_changes() == (NOTHING, stored)

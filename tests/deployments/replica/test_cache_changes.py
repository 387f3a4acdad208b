"""What a replica adds to what leaves it, from what its engine says."""

from collections import deque

from deployments.replica.cache_changes import CacheChanges, NoCacheChanges
from deployments.wire.inner_hop import WithCacheChange, decode_item, encode
from engines.contract import Chunk, KvCleared, KvDropped, KvEvent, KvStored
from routing.prefixes.block_hashes import block_hashes

CHUNK = Chunk("Hello", (1,))
TEXT = (5, 6, 7, 8)
FIRST, SECOND = block_hashes(TEXT, 2)


def test_what_an_engine_says_goes_with_the_next_item_and_once() -> None:
    said: deque[list[KvEvent]] = deque([[KvStored((b"x", b"y"), None, TEXT), KvDropped((b"y",))], [], [KvCleared()]])
    changes = CacheChanges(said.popleft, block_tokens=2)

    assert changes.with_changes(CHUNK) == WithCacheChange(CHUNK, (FIRST,), (SECOND,))
    assert changes.with_changes(CHUNK) == CHUNK
    assert changes.with_changes(CHUNK) == WithCacheChange(CHUNK, (), (FIRST,))


def test_without_events_items_are_what_they_were() -> None:
    assert NoCacheChanges().with_changes(CHUNK) == CHUNK


def test_it_travels_whole() -> None:
    item = WithCacheChange(CHUNK, (FIRST, 2**64 - 1), (SECOND,))

    assert decode_item(encode(item)) == item

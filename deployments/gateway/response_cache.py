"""Whole answers, kept for requests that ask for exactly the same again.

Only answers that would be the same again are kept: greedy ones (temperature 0), given in full. What decides such an
answer is the prompt's token ids and the sampling; the key is a hash of these and of the tenant, so that nobody is ever
given what another tenant's request was answered with. Each gateway replica has a cache of its own.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

import msgspec
from cachetools import TTLCache

from engines.contract import Chunk, EngineRequest

OVERHEAD_BYTES = 300
"""What an entry takes beside its answer: the key, and the cache's own records."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Chunk).decode


class CacheEntry(Protocol):
    """What the cache has to do with one request."""

    @property
    def has_answer(self) -> bool:
        """Whether the answer was there when the request came in."""
        ...

    def answer(self) -> Chunk:
        """All of it; only where there is one."""
        ...

    def add(self, chunk: Chunk) -> None:
        """A part of the answer that the request is given."""
        ...

    def keep(self) -> None:
        """It has all of it, and nothing of it was given up: the answer is kept."""
        ...


class NoCacheEntry:
    """The cache has nothing to do with the request."""

    has_answer = False

    def answer(self) -> Chunk:
        raise LookupError("there is no answer")

    def add(self, chunk: Chunk) -> None: ...

    def keep(self) -> None: ...


NO_CACHE_ENTRY = NoCacheEntry()


class NoResponseCache:
    """Nothing is kept."""

    def look_up(self, tenant: str, request: EngineRequest) -> CacheEntry:
        return NO_CACHE_ENTRY


class ResponseCache:
    """Answers by tenant and request; those that were not used for the longest time go first.

    Args:
        max_bytes: All entries together take no more.
        ttl_s: An answer is forgotten so long after it was given, seconds.
        now_s: The time, seconds, monotonic.
        count_lookup: Told of each request that could be answered from here, and whether it can be.
    """

    def __init__(
        self,
        max_bytes: int,
        ttl_s: float,
        *,
        now_s: Callable[[], float],
        count_lookup: Callable[[bool], None],
    ) -> None:
        self._max_bytes = max_bytes
        self._answers: TTLCache[bytes, bytes] = TTLCache(max_bytes, ttl_s, timer=now_s, getsizeof=_size_bytes)
        self._count_lookup = count_lookup

    @property
    def num_bytes(self) -> float:
        """What all entries take together."""
        return float(self._answers.currsize)

    def look_up(self, tenant: str, request: EngineRequest) -> CacheEntry:
        """What there is for a request that has just come in."""
        if request.sampling.temperature > 0:
            return NO_CACHE_ENTRY
        key = key_of(tenant, request)
        found = self._answers.get(key)
        self._count_lookup(found is not None)
        return _Kept(found, len(request.prompt_token_ids)) if found is not None else _Recording(key, self)

    def put(self, key: bytes, answer: Chunk) -> None:
        """Keeps an answer, unless it alone is too long."""
        encoded = _encode(answer)
        if _size_bytes(encoded) <= self._max_bytes:
            self._answers[key] = encoded


class _Kept:
    """The answer is there."""

    has_answer = True

    def __init__(self, encoded: bytes, prompt_tokens: int) -> None:
        self._encoded = encoded
        self._prompt_tokens = prompt_tokens

    def answer(self) -> Chunk:
        return msgspec.structs.replace(_decode(self._encoded), cached_tokens=self._prompt_tokens)

    def add(self, chunk: Chunk) -> None: ...

    def keep(self) -> None: ...


class _Recording:
    """The answer is not there yet."""

    has_answer = False

    def __init__(self, key: bytes, cache: ResponseCache) -> None:
        self._key = key
        self._cache = cache
        self._chunks: list[Chunk] = []

    def answer(self) -> Chunk:
        raise LookupError("there is no answer yet")

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def keep(self) -> None:
        if self._chunks and self._chunks[-1].finish_reason in ("stop", "length"):
            self._cache.put(self._key, joined(self._chunks))


def key_of(tenant: str, request: EngineRequest) -> bytes:
    """Equal for requests of one tenant, with one salt, that have the same greedy answer; a seed changes nothing about
    that.
    """
    sampling = msgspec.structs.replace(request.sampling, seed=None)
    salted = (tenant, request.cache_salt, request.adapter)
    return sha256(_encode((*salted, request.prompt_token_ids, sampling, request.pooling))).digest()


def joined(chunks: list[Chunk]) -> Chunk:
    """One chunk with all that several have."""
    last = chunks[-1]
    logprobs = tuple(entry for chunk in chunks for entry in chunk.logprobs or ())
    return Chunk(
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        cached_tokens=max(chunk.cached_tokens for chunk in chunks),
        logprobs=logprobs or None,
        prompt_logprobs=chunks[0].prompt_logprobs,
        vector=last.vector,
    )


def _size_bytes(encoded: bytes) -> int:
    return len(encoded) + OVERHEAD_BYTES

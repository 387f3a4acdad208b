"""Encodes long texts in the time that cores have left, and hedges where they have none."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from deployments.tokenizing.encoding_messages import Encoded, Priority, Wanted
from deployments.tokenizing.encoding_process import EncodingLost, EncodingProcess, Source
from deployments.tokenizing.encoding_program import NUM_AT_A_TIME

HEDGE_AFTER_S = 0.5
HEDGE_AFTER_S_PER_CHARACTER = 4e-6
"""Ten times as long as a core takes for one."""
Attempt = asyncio.Task[Encoded]
"""At a text, by one of the processes."""


class HedgedEncoding:
    """Two processes: one for what time is left, and one that has a share of a core, which is seldom started.

    A text goes to the first. One that it does not encode in time goes to the other as well, and the first answer
    counts. What a process could not encode in time it goes on with, and has a place less meanwhile: where the first has
    none, a text goes to the other at once; where the other has none, nothing is hedged.

    Args:
        source: What they encode with.
    """

    def __init__(self, source: Source) -> None:
        self._spare = EncodingProcess(source, Priority.SPARE)
        self._share = EncodingProcess(source, Priority.SHARE)
        self._in_spare: set[Attempt] = set()
        self._in_share: set[Attempt] = set()

    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        """What comes of a text.

        Raises:
            EncodingFailed: The tokenizer can't.
            EncodingLost: Each process that had it has ended with it twice, or can't be started, or is closed.
        """

        def attempt(process: EncodingProcess, places: set[Attempt]) -> Attempt:
            return _begin(process.encode(text, add_special_tokens, wanted), places)

        await self._spare.loaded()
        if not _has_place(self._in_spare):
            return await attempt(self._share, self._in_share)
        first = attempt(self._spare, self._in_spare)
        await asyncio.wait({first}, timeout=HEDGE_AFTER_S + HEDGE_AFTER_S_PER_CHARACTER * len(text))
        if first.done() or not _has_place(self._in_share):
            return await first
        return await _first_answer(first, attempt(self._share, self._in_share))

    def close(self) -> None:
        """Ends both; nothing is encoded any more."""
        self._spare.close()
        self._share.close()


def _has_place(places: set[Attempt]) -> bool:
    return len(places) < NUM_AT_A_TIME


def _begin(encoding: Coroutine[Any, Any, Encoded], places: set[Attempt]) -> Attempt:
    """An attempt that keeps its place until it ends, though nobody may be left to hear how."""
    attempt = asyncio.create_task(encoding)
    places.add(attempt)

    def has_ended(_: Attempt) -> None:
        places.discard(attempt)
        if not attempt.cancelled():
            attempt.exception()

    attempt.add_done_callback(has_ended)
    return attempt


async def _first_answer(first: Attempt, hedge: Attempt) -> Encoded:
    """The other's, where a process is lost with it."""
    await asyncio.wait({first, hedge}, return_when=asyncio.FIRST_COMPLETED)
    ended, other = (first, hedge) if first.done() else (hedge, first)
    try:
        return ended.result()
    except EncodingLost:
        return await other

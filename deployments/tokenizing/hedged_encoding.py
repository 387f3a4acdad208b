"""Encodes long texts in the time that cores have left, and hedges where they have none."""

import asyncio

from deployments.tokenizing.encoding_messages import Encoded, Wanted
from deployments.tokenizing.encoding_process import EncodingProcess, Source
from deployments.tokenizing.encoding_program import NUM_AT_A_TIME, Priority

HEDGE_AFTER_S = 0.5
HEDGE_AFTER_S_PER_CHARACTER = 4e-6
"""Ten times as long as a core takes for one."""


class HedgedEncoding:
    """Two processes: one for what time is left, and one that has a share of a core, which is seldom started.

    A text goes to the first. One that it does not encode in time goes to the other as well, and so does one for which
    it has no place: what it could not encode in time it goes on with.

    Args:
        source: What they encode with.
    """

    def __init__(self, source: Source) -> None:
        self._spare = EncodingProcess(source, Priority.SPARE)
        self._share = EncodingProcess(source, Priority.SHARE)
        self._in_spare: set[asyncio.Task[Encoded]] = set()

    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        """What comes of a text.

        Raises:
            EncodingFailed: The tokenizer can't.
            EncodingLost: A process has ended with it twice, or can't be started, or is closed.
        """
        if len(self._in_spare) >= NUM_AT_A_TIME:
            return await self._share.encode(text, add_special_tokens, wanted)
        first = asyncio.create_task(self._spare.encode(text, add_special_tokens, wanted))
        self._in_spare.add(first)
        first.add_done_callback(self._has_ended)
        patience_s = HEDGE_AFTER_S + HEDGE_AFTER_S_PER_CHARACTER * len(text)
        if not (await asyncio.wait({first}, timeout=patience_s))[0]:
            hedge = asyncio.create_task(self._share.encode(text, add_special_tokens, wanted))
            hedge.add_done_callback(_hear)
            await asyncio.wait({first, hedge}, return_when=asyncio.FIRST_COMPLETED)
            return (first if first.done() else hedge).result()
        return first.result()

    def close(self) -> None:
        """Ends both; nothing is encoded any more."""
        self._spare.close()
        self._share.close()

    def _has_ended(self, first: "asyncio.Task[Encoded]") -> None:
        self._in_spare.discard(first)
        _hear(first)


def _hear(attempt: "asyncio.Task[Encoded]") -> None:
    """Nobody may be left to hear how it ends."""
    if not attempt.cancelled():
        attempt.exception()

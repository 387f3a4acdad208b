"""What a replica keeps of answers whose clients may come back for the rest by way of another gateway.

It keeps the tokens alone, for a while after their attempt has ended: no slot and no KV. The rest is generated anew from
what the client has, and mostly finds its KV in the prefix cache.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Item, WithCacheChange, decode_request
from engines.contract import Chunk

MOST_TOKENS = 1 << 22
"""Of answers that have ended; 16 MB. The oldest go first."""
ENTRY_TOKENS = 256
"""As many more count for each answer, as keeping it takes a kilobyte beside them."""
NOT_THE_LAST = Chunk("", ())


class KeptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a replica has of an answer.

    Args:
        token_ids: Its tokens, from the first on, whoever has generated them.
        chars: Length of their text.
        last: The chunk that it has ended with; without a ``finish_reason``: it has not.
    """

    token_ids: tuple[int, ...]
    chars: int
    last: Chunk = NOT_THE_LAST


class NotKept:
    """Nobody has asked for that."""

    def add(self, item: Item) -> None:
        """The attempt gives something."""

    def end(self) -> None:
        """It is over."""


class Keeping(NotKept):
    """One attempt's answer, as it grows.

    Args:
        order: The attempt; what was emitted before it is at the end of its prompt.
        on_end: Is called when it is over.
    """

    def __init__(self, order: AttemptOrder, on_end: Callable[["Keeping"], None]) -> None:
        before = decode_request(order.request)
        self.name, self.for_s = order.kept_as, order.kept_for_s
        self._token_ids = array("I", before.answered_token_ids if before.answered_tokens else ())
        self._chars = before.answered_chars
        self._last = NOT_THE_LAST
        self._on_end = on_end

    @property
    def num_tokens(self) -> int:
        """How much that is."""
        return len(self._token_ids) + ENTRY_TOKENS

    def answer(self) -> KeptAnswer:
        """What there is of it now."""
        return KeptAnswer(tuple(self._token_ids), self._chars, self._last)

    def add(self, item: Item) -> None:
        chunk = item.item if isinstance(item, WithCacheChange) else item
        if isinstance(chunk, Chunk) and chunk.finish_reason != "abort":
            self._token_ids.extend(chunk.token_ids)
            self._chars += len(chunk.text)
            self._last = chunk if chunk.finish_reason else NOT_THE_LAST

    def end(self) -> None:
        self._on_end(self)


NOT_KEPT = NotKept()


class KeptAnswers:
    """Those of one replica, by name.

    Args:
        call_later: Calls something after so many seconds.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._call_later = call_later
        self._kept: dict[str, Keeping] = {}
        self._ended: OrderedDict[int, Keeping] = OrderedDict()
        self._num_ended = self._ended_tokens = 0

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, order: AttemptOrder) -> NotKept:
        """An attempt begins; what there is of an earlier one of the same answer, its own begins with."""
        if not order.kept_as:
            return NOT_KEPT
        kept = self._kept[order.kept_as] = Keeping(order, self._end)
        return kept

    def find(self, name: str) -> KeptAnswer | None:
        """What there is of an answer."""
        kept = self._kept.get(name)
        return None if kept is None else kept.answer()

    def _end(self, kept: Keeping) -> None:
        self._num_ended += 1
        self._ended[self._num_ended] = kept
        self._ended_tokens += kept.num_tokens
        self._call_later(kept.for_s, partial(self._forget, self._num_ended))
        while self._ended_tokens > MOST_TOKENS:
            self._forget(next(iter(self._ended)))

    def _forget(self, number: int) -> None:
        """By a number: a timer that held the answer would keep it in memory."""
        kept = self._ended.pop(number, None)
        if kept is None:
            return
        self._ended_tokens -= kept.num_tokens
        if self._kept.get(kept.name) is kept:
            del self._kept[kept.name]

"""Ids of a stream's events, by which a client whose connection broke says what it has of the answer.

    <answer>.<tokens>.<characters>.<digest>

The digest is of the tokens: what somebody else has kept of the answer is gone on with only where its tokens are those
that the client has. To clients an id is opaque, as ``Last-Event-ID`` is.
"""

import re
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deployments.openai.errors import invalid
from engines.contract import Chunk

LAST_EVENT_HEADER = "last-event-id"
_FORM = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9]{1,9})\.([0-9]{1,9})\.([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventId:
    """What a client has of an answer.

    Args:
        answer: The response's ``id``.
        tokens: How many tokens.
        chars: Length of their text, as far as it was sent.
        digest: Of these tokens.
    """

    answer: str
    tokens: int = 0
    chars: int = 0
    digest: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """What the header says.

        Raises:
            ApiError: 400, no event has such an id.
        """
        found = _FORM.fullmatch(text)
        if found is None or not int(found[2]):
            raise invalid(f"{LAST_EVENT_HEADER}: got {text!r}; allowed: the id of a stream's event", LAST_EVENT_HEADER)
        return cls(found[1], int(found[2]), int(found[3]), int(found[4], 16))

    def after(self, token_ids: Sequence[int], chars: int) -> "EventId":
        """The id once these have come, too."""
        return EventId(self.answer, self.tokens + len(token_ids), self.chars + chars, digest_of(token_ids, self.digest))

    def __bool__(self) -> bool:
        return bool(self.answer)

    def __str__(self) -> str:
        return f"{self.answer}.{self.tokens}.{self.chars}.{self.digest:08x}"


NO_EVENT = EventId("")
"""Of a client that has nothing yet."""


def digest_of(token_ids: Sequence[int], before: int = 0) -> int:
    """CRC-32 of tokens that come after others of which it is known."""
    return zlib.crc32(array("I", token_ids).tobytes(), before)


class NoEventIds:
    """Nobody comes back for the rest of this answer: its events have none."""

    def line(self, chunk: Chunk) -> bytes:
        """What the event of a chunk begins with."""
        return b""


class EventIds(NoEventIds):
    """Those of one answer.

    Args:
        last: What its client has.
    """

    def __init__(self, last: EventId) -> None:
        self._answer = last.answer
        self._tokens, self._chars, self._digest = last.tokens, last.chars, last.digest

    def line(self, chunk: Chunk) -> bytes:
        self._tokens += len(chunk.token_ids)
        self._chars += len(chunk.text)
        self._digest = digest_of(chunk.token_ids, self._digest)
        return b"id: %b.%d.%d.%08x\n" % (self._answer.encode(), self._tokens, self._chars, self._digest)


NO_EVENT_IDS = NoEventIds()

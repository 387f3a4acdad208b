"""What waits in the same queue at the other gateways."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

SLOT_S = 0.125
"""Prompts whose first tokens are due within the same slot are told of together."""
VALID_S = 0.5


class WaitingHere:
    """Prompt tokens of those that wait for whichever replica has room first, by when their first tokens are due."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def add(self, due_s: float, tokens: int) -> None:
        """They wait from here on; fewer than none: no longer."""
        slot = math.floor(due_s / SLOT_S)
        left = self._tokens.get(slot, 0) + tokens
        if left:
            self._tokens[slot] = left
        else:
            self._tokens.pop(slot, None)

    def told(self) -> tuple[tuple[float, int], ...]:
        """For the other gateways."""
        return tuple((slot * SLOT_S, tokens) for slot, tokens in self._tokens.items())


class WaitingElsewhere:
    """The same of all other gateways, as they last told it; after ``VALID_S`` it counts for nothing."""

    def __init__(self) -> None:
        self.hear((), -math.inf)

    def hear(self, told: Sequence[tuple[float, int]], now_s: float) -> None:
        """Replaces what was known."""
        self._heard_s = now_s
        in_order = sorted(told)
        self._due_s = [due_s for due_s, _ in in_order]
        self._tokens = [0, *accumulate(tokens for _, tokens in in_order)]

    def tokens_at(self, now_s: float) -> int:
        """All of them."""
        return self._tokens[-1] if now_s < self._heard_s + VALID_S else 0

    def tokens_before(self, due_s: float, now_s: float) -> int:
        """Of those that are due earlier, by a slot at least."""
        return self._tokens[bisect_left(self._due_s, due_s - SLOT_S)] if now_s < self._heard_s + VALID_S else 0

"""How much work a replica has open, from all gateways together."""

from collections.abc import Iterator
from contextlib import contextmanager


class WorkAccount:
    """Open attempts and their tokens; a replica reports the sum, and gateways correct it by what they know better."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self.open_tokens = 0
        self.attempts_total = 0

    @property
    def num_open(self) -> int:
        """Attempts that have not ended."""
        return len(self._tokens)

    @contextmanager
    def doing(self, attempt_id: str, tokens: int) -> Iterator[None]:
        """The attempt is open while the block runs, whatever happens in it."""
        self._tokens[attempt_id] = tokens
        self.open_tokens += tokens
        self.attempts_total += 1
        try:
            yield
        finally:
            self.open_tokens -= self._tokens.pop(attempt_id)

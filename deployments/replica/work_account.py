"""How much work a replica has open, from all gateways together."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class OpenWork:
    """One attempt's work, in the amounts that its gateway sent along.

    Args:
        prefill_tokens: Prompt tokens that are still to be computed.
        kv_tokens: KV tokens that it is expected to hold at its longest.
    """

    prefill_tokens: int = 0
    kv_tokens: int = 0


class WorkAccount:
    """Open attempts and their work; a replica reports the sums, and gateways correct them by what they know better."""

    def __init__(self) -> None:
        self.num_open = 0
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self.attempts_total = 0

    @contextmanager
    def doing(self, work: OpenWork) -> Iterator[None]:
        """The attempt is open while the block runs, whatever happens in it."""
        self.num_open += 1
        self.prefill_tokens += work.prefill_tokens
        self.kv_tokens += work.kv_tokens
        self.attempts_total += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self.prefill_tokens -= work.prefill_tokens
            self.kv_tokens -= work.kv_tokens

    def end_prefill(self, work: OpenWork) -> None:
        """An open attempt has given its first token; a second call finds nothing left to take off."""
        self.prefill_tokens -= work.prefill_tokens
        work.prefill_tokens = 0

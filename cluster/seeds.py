"""Named random streams derived from one seed: a change of one policy never shifts another's draws."""

import hashlib
import random
from dataclasses import dataclass


class Seeds:
    """Random streams by name.

    Args:
        seed: The run's seed. The same seed and name give the same stream on every machine.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, name: str) -> random.Random:
        """A fresh generator for one purpose."""
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStreams:
    """The random streams of one gateway, as data: what can be written down draws the same again.

    Args:
        seed: The run's seed, shared by all gateways.
        prefix: Stands before the purpose in the name of each stream.
        suffix: Stands behind it. Gateways of one seed that differ in neither draw the same.
    """

    seed: int
    prefix: str = ""
    suffix: str = ""

    def stream(self, purpose: str) -> random.Random:
        """A fresh generator for one purpose."""
        return Seeds(self.seed).stream(f"{self.prefix}{purpose}{self.suffix}")

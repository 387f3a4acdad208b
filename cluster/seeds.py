"""Named random streams derived from one seed: a change of one policy never shifts another's draws."""

import hashlib
import random


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

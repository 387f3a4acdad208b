"""Which adapters a replica is taken to have loaded."""

from collections import Counter
from collections.abc import Iterable


class KnownAdapters:
    """By its last report, and by what this gateway has sent there since: the engine loads what it is asked for, in the
    place of the one that was used least lately.

    Args:
        max_adapters: As many as the engine keeps.
    """

    __slots__ = ("_in_use", "_loaded", "_max_adapters", "_said_in_use")

    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._loaded: dict[str, None] = {}
        self._in_use: Counter[str] = Counter()
        self._said_in_use: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    def has_slot_for(self, name: str) -> bool:
        """Whether it can be computed with beside those that attempts have."""
        return name in self._loaded or len(self._said_in_use | self._in_use.keys()) < self._max_adapters

    def enter(self, name: str) -> None:
        """An attempt with this adapter has been sent there."""
        self._in_use[name] += 1
        self._use(name)

    def leave(self, name: str) -> None:
        """It has ended."""
        self._in_use[name] -= 1
        if not self._in_use[name]:
            del self._in_use[name]

    def report(self, names: Iterable[str], in_use: Iterable[str]) -> None:
        """The engine has these, the last one used first; those of attempts under way are on their way there."""
        if not self._max_adapters:
            return
        self._said_in_use = frozenset(in_use)
        in_use = [name for name in self._loaded if name in self._in_use]
        self._loaded = dict.fromkeys(reversed(tuple(names)))
        for name in in_use:
            self._use(name)

    def _use(self, name: str) -> None:
        self._loaded.pop(name, None)
        self._loaded[name] = None
        while len(self._loaded) > max(1, self._max_adapters):
            del self._loaded[next(iter(self._loaded))]

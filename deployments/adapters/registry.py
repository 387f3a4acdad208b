"""Which adapters a model has: those that its configuration lists, and those that were loaded while it runs.

Every gateway and every replica has a registry. One that was told of a change tells the others through what replicas
report, and all of them go by the latest word on each name, so that none needs to ask another and all agree in the end.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engines.contract import NO_ADAPTER, Adapter


class Entry(NamedTuple):
    """The latest word on a name.

    Args:
        at_unix_s: When it was said, by the clock of the gateway that said it; 0 for what the configuration lists.
        path: Where the adapter is; empty: it was unloaded.
    """

    at_unix_s: float
    path: str


Said = Mapping[str, tuple[float, str]]
"""Entries as they travel, by the adapter's name."""


class AdapterRegistry:
    """The adapters of one model, as one process knows them.

    Args:
        listed: Those of the configuration.
    """

    def __init__(self, listed: Iterable[Adapter] = ()) -> None:
        self._entries = {each.name: Entry(0.0, each.path) for each in listed}

    @property
    def names(self) -> tuple[str, ...]:
        """All that there are, in order of their names."""
        return tuple(sorted(name for name, entry in self._entries.items() if entry.path))

    def get(self, name: str) -> Adapter:
        """The adapter of that name; ``NO_ADAPTER`` where there is none."""
        entry = self._entries.get(name)
        return Adapter(name, entry.path) if entry is not None and entry.path else NO_ADAPTER

    def knows(self, name: str) -> bool:
        """Whether there was a word on that name, be it that it is no more."""
        return name in self._entries

    def say(self, name: str, path: str, at_unix_s: float) -> None:
        """A word on a name; it counts unless there is a later one. Of two at the same time the same one everywhere."""
        entry = Entry(at_unix_s, path)
        if entry > self._entries.get(name, Entry(-1.0, "")):
            self._entries[name] = entry

    def hear(self, said: Said) -> None:
        """What another registry has said."""
        for name, (at_unix_s, path) in said.items():
            self.say(name, path, at_unix_s)

    def said(self) -> dict[str, tuple[float, str]]:
        """What others can hear: all but what the configuration lists, which they know."""
        return {name: (entry.at_unix_s, entry.path) for name, entry in self._entries.items() if entry.at_unix_s}

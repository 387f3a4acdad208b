"""What an emulated engine says of its prefix cache: the model names units of text, and this knows the text."""

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from itertools import chain

from engines.contract import KvDropped, KvEvent, KvStored
from engines.model.kv_blocks import KvBlocks
from engines.model.sequences import Sequence


@dataclass(slots=True)
class _Unit:
    """A unit of text that an open request has or that is cached.

    Args:
        parent: The unit before it.
        token_ids: Its text.
        num_users: Open requests that have it.
        is_plain: Whether it is computed without an adapter: nobody is told of others.
        cache_salt: Of the text that begins with it.
        is_told: Whether it was last said to be there.
    """

    parent: int | None
    token_ids: tuple[int, ...]
    num_users: int = 0
    is_plain: bool = True
    cache_salt: str = ""
    is_told: bool = False


class NoKvEvents:
    """Nobody wants to know."""

    def begin(self, sequence: Sequence, token_ids: TokenIds[int], cache_salt: str = "") -> None:
        """A request comes."""

    def end(self, sequence: Sequence) -> None:
        """Nobody reads it any more."""

    def take(self) -> list[KvEvent]:
        """There are none."""
        return []


class KvEvents(NoKvEvents):
    """Keeps the text of what is used or cached, and says what comes and goes.

    Args:
        blocks: The model's.
        unit_tokens: Tokens in a unit of text.
    """

    def __init__(self, blocks: KvBlocks, unit_tokens: int) -> None:
        blocks.watch()
        self._blocks = blocks
        self._unit_tokens = unit_tokens
        self._units: dict[int, _Unit] = {}
        self._untaken: list[KvEvent] = []
        self._leaving: list[Sequence] = []

    def begin(self, sequence: Sequence, token_ids: TokenIds[int], cache_salt: str = "") -> None:
        """A request comes with a text whose units its ``content`` names."""
        parent: int | None = None
        for number, name in enumerate(sequence.content):
            unit = self._units.get(name)
            if unit is None:
                start = number * self._unit_tokens
                text = tuple(token_ids[start : start + self._unit_tokens])
                salt = "" if number else cache_salt
                unit = _Unit(parent, text, is_plain=not sequence.adapter, cache_salt=salt)
                self._units[name] = unit
            unit.num_users += 1
            parent = name

    def end(self, sequence: Sequence) -> None:
        """Nobody reads it any more; it may be in the batch until the step is over, and its text may be cached then."""
        self._leaving.append(sequence)
        self._look()

    def take(self) -> list[KvEvent]:
        """All since this was last asked."""
        self._look()
        taken, self._untaken = self._untaken, []
        return taken

    def _look(self) -> None:
        for name, is_there in self._blocks.take_changes().items():
            unit = self._units[name]
            if unit.is_told is is_there:
                continue
            unit.is_told = is_there
            if unit.is_plain:
                stored = KvStored((name,), unit.parent, unit.token_ids, unit.cache_salt)
                self._untaken.append(stored if is_there else KvDropped((name,)))
            self._forget_unused(name)
        gone = [each for each in self._leaving if each.is_over]
        self._leaving = [each for each in self._leaving if not each.is_over]
        for name in chain.from_iterable(each.content for each in gone):
            self._units[name].num_users -= 1
            self._forget_unused(name)

    def _forget_unused(self, name: int) -> None:
        unit = self._units[name]
        if not unit.num_users and not unit.is_told:
            del self._units[name]

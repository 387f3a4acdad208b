"""The KV cache of the step model: how many blocks there are, who holds them, and what can be found in them again.

Blocks are counted, not listed, except where text may be shared. Shared text has an identity, one number for each unit
of a whole number of blocks (see :meth:`KvBlocks.lookup`), and is kept unit by unit: held while anybody uses it, then in
a least-recently-used line until its blocks are needed. Full blocks of text that nobody shares go through the same line
as one nameless unit, because they push shared text out just as well. Blocks that are not full go ahead of the line.
"""

from collections import OrderedDict
from collections.abc import Sequence

from policies.errors import InvariantViolation

NAMELESS = None


class BlockRun:
    """Cached blocks with consecutive text.

    Args:
        name: Identity of the text up to and including this unit; ``None`` for text that nobody looks up.
        num_blocks: Blocks.
        num_holders: Sequences that use it.
    """

    __slots__ = ("name", "num_blocks", "num_holders")

    def __init__(self, name: int | None, num_blocks: int, num_holders: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.num_holders = num_holders


class KvHolding:
    """The blocks that one sequence holds.

    Attributes:
        num_own_blocks: Blocks that nobody else can find.
        units: Units that others can find, in order of the text, which begins with them.
    """

    __slots__ = ("num_own_blocks", "units")

    def __init__(self) -> None:
        self.num_own_blocks = 0
        self.units: list[BlockRun] = []

    @property
    def num_unit_blocks(self) -> int:
        """Blocks in units."""
        units = self.units
        return len(units) * units[0].num_blocks if units else 0


class KvBlocks:
    """Block-accurate accounting with a reference-counted prefix cache, as vLLM V1 keeps it.

    Args:
        num_blocks: Blocks in all.
        block_tokens: Tokens in a block.

    Raises:
        InvariantViolation: From any method, when more is given back than was taken.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._num_untouched = num_blocks
        self._num_idle = 0
        self._idle: OrderedDict[BlockRun, None] = OrderedDict()
        self._cached: dict[int, BlockRun] = {}
        self._copies: dict[int, list[BlockRun]] = {}
        self._is_watched = False
        self._changes: dict[int, bool] = {}

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self._num_untouched - self._num_idle

    @property
    def num_available(self) -> int:
        """Blocks that can be had now, those of idle cached text included."""
        return self._num_untouched + self._num_idle

    @property
    def has_copies(self) -> bool:
        """Whether some text is cached twice."""
        return bool(self._copies)

    @property
    def usage_fraction(self) -> float:
        """Share of the blocks that somebody holds, as vLLM's ``kv_cache_usage``."""
        return self.num_used / self.num_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.block_tokens)

    # -- cached text --------------------------------------------------------------------------------------------------

    def lookup(self, content: Sequence[int], max_units: int) -> list[BlockRun]:
        """Which of the first ``max_units`` units of a text are cached, up to the first that is not.

        Args:
            content: The text, one number for each unit. Equal numbers mean: equal text up to and including the unit.
            max_units: Units that may be used.
        """
        found: list[BlockRun] = []
        cached = self._cached
        for name in content[:max_units]:
            unit = cached.get(name)
            if unit is None:
                break
            found.append(unit)
        return found

    def watch(self) -> None:
        """From now on what comes and goes is kept for :meth:`take_changes`, which somebody has to call."""
        self._is_watched = True

    def take_changes(self) -> dict[int, bool]:
        """By name, whether a unit can be found now: those that have come or gone since this was last asked."""
        changes = self._changes
        if changes:
            self._changes = {}
        return changes

    def drop_idle(self) -> None:
        """Forgets all cached text that no sequence holds."""
        self._evict(self._num_idle)

    def num_idle_blocks(self, units: Sequence[BlockRun]) -> int:
        """Blocks of units that nobody holds now: holding them leaves so many fewer to be had."""
        return sum(unit.num_blocks for unit in units if not unit.num_holders)

    def share(self, holding: KvHolding, units: Sequence[BlockRun]) -> None:
        """Holds cached units."""
        for unit in units:
            if not unit.num_holders:
                del self._idle[unit]
                self._num_idle -= unit.num_blocks
            unit.num_holders += 1
            holding.units.append(unit)

    def publish(self, holding: KvHolding, names: Sequence[int], unit_blocks: int) -> None:
        """Turns the holder's own blocks into units that others can find.

        Text that is cached already is cached twice then, as it is in vLLM; the second is found when the first is gone.
        """
        for name in names:
            unit = BlockRun(name, unit_blocks, 1)
            if name in self._cached:
                self._copies.setdefault(name, []).append(unit)
            else:
                self._cached[name] = unit
                if self._is_watched:
                    self._changes[name] = True
            holding.units.append(unit)
        holding.num_own_blocks -= len(names) * unit_blocks

    def reclaim(self, holding: KvHolding, idle: BlockRun, num_blocks: int) -> None:
        """Makes the first blocks of a nameless unit, which its sequence has given back, that sequence's own again."""
        idle.num_blocks -= num_blocks
        self._num_idle -= num_blocks
        holding.num_own_blocks += num_blocks
        if not idle.num_blocks:
            del self._idle[idle]

    # -- blocks -------------------------------------------------------------------------------------------------------

    def allocate(self, holding: KvHolding, num_blocks: int) -> bool:
        """Takes blocks, pushing idle text out if need be; ``False``, with nothing taken, when too few are left."""
        if not self.take(num_blocks):
            return False
        holding.num_own_blocks += num_blocks
        return True

    def take(self, num_blocks: int) -> bool:
        """Takes blocks for holders who count for themselves; see :meth:`allocate`."""
        if num_blocks > self._num_untouched:
            if num_blocks > self._num_untouched + self._num_idle:
                return False
            self._evict(num_blocks - self._num_untouched)
        self._num_untouched -= num_blocks
        return True

    def release(self, holding: KvHolding, num_full_blocks: int = 0, *, comes_back: bool = False) -> BlockRun | None:
        """Gives everything back; the end of the text leaves the cache before its beginning.

        Args:
            holding: What is given back.
            num_full_blocks: Blocks that are full of text, from the first on.
            comes_back: The sequence will look for its text again.

        Returns:
            If it comes back, its full blocks that are in no named unit, for :meth:`reclaim`. They grow fewer from the
            end on as others take blocks.
        """
        num_nameless = max(0, num_full_blocks - holding.num_unit_blocks)
        rest = None
        if num_nameless and (comes_back or self._idle):  # or else there is no text to be pushed out
            rest = BlockRun(NAMELESS, num_nameless, 0)
            self._idle[rest] = None
            self._num_idle += num_nameless
            self._num_untouched -= num_nameless
        self._num_untouched += holding.num_own_blocks
        for unit in reversed(holding.units):
            unit.num_holders -= 1
            if not unit.num_holders:
                self._idle[unit] = None
                self._num_idle += unit.num_blocks
        if self._num_untouched + self._num_idle > self.num_blocks or holding.num_own_blocks < num_nameless:
            raise InvariantViolation("more KV blocks were given back than were taken")
        holding.num_own_blocks = 0
        holding.units = []
        return rest

    def _evict(self, num_blocks: int) -> None:
        """Makes at least ``num_blocks`` untouched again, least recently used first; a named unit goes as a whole."""
        while num_blocks > 0:
            unit = next(iter(self._idle))
            freed = unit.num_blocks
            if unit.name is NAMELESS and freed > num_blocks:
                freed = num_blocks
                unit.num_blocks -= freed
            else:
                del self._idle[unit]
                self._forget(unit)
            num_blocks -= freed
            self._num_idle -= freed
            self._num_untouched += freed

    def _forget(self, unit: BlockRun) -> None:
        """Nobody finds the unit any more; of text that is cached twice, the other one is found from now on."""
        name = unit.name
        if name is NAMELESS:
            unit.num_blocks = 0
            return
        copies = self._copies.get(name)
        if copies is None:
            del self._cached[name]
            if self._is_watched:
                self._changes[name] = False
        elif self._cached[name] is unit:
            self._cached[name] = copies.pop(0)
        else:
            copies.remove(unit)
        if copies == []:
            del self._copies[name]

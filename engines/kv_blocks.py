"""The KV cache of the step model: how many blocks there are, who holds them, and what can be found in them again.

Blocks are counted, not listed, except where text may be shared. Shared text has an identity, one number for each unit
of a whole number of blocks (see ``KvBlocks.lookup``), and is kept unit by unit: held while anybody uses it, then in a
least-recently-used line until its blocks are needed. Text that nobody shares goes through the same line as a nameless
stretch of blocks, because it pushes shared text out just as well.
"""

from collections import OrderedDict
from collections.abc import Sequence

from policies.errors import InvariantViolation


class KvHolding:
    """The blocks that one sequence holds.

    Args:
        num_own_blocks: Blocks that nobody else can find.
        units: Units held together with whoever else has the same text, in order of the text.
    """

    __slots__ = ("num_own_blocks", "units")

    def __init__(self) -> None:
        self.num_own_blocks = 0
        self.units: list[int] = []


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
        self._num_used = 0
        self._num_untouched = num_blocks
        self._num_idle = 0
        self._references: dict[int, int] = {}
        self._unit_blocks: dict[int, int] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()
        self._num_nameless = 0

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self._num_used

    @property
    def num_available(self) -> int:
        """Blocks that can be had now, those of idle cached text included."""
        return self._num_untouched + self._num_idle

    @property
    def usage_fraction(self) -> float:
        """Share of the blocks that somebody holds, as vLLM's ``kv_cache_usage``."""
        return self._num_used / self.num_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.block_tokens)

    # -- cached text --------------------------------------------------------------------------------------------------

    def lookup(self, content: Sequence[int], max_units: int) -> int:
        """How many of the first ``max_units`` units of a text are cached without a gap.

        Args:
            content: The text, one number for each unit. Equal numbers mean: equal text up to and including the unit.
            max_units: Units that may be used.
        """
        found = 0
        references = self._references
        for unit in content[:max_units]:
            if unit not in references:
                break
            found += 1
        return found

    def num_idle_blocks(self, units: Sequence[int]) -> int:
        """Blocks of cached units that nobody holds now: holding them leaves so many fewer to be had."""
        return sum(self._unit_blocks[unit] for unit in units if not self._references[unit])

    def share(self, holding: KvHolding, units: Sequence[int]) -> None:
        """Holds cached units."""
        for unit in units:
            if not self._references[unit]:
                num_blocks = self._idle.pop(unit)
                self._num_idle -= num_blocks
                self._num_used += num_blocks
            self._references[unit] += 1
            holding.units.append(unit)

    def publish(self, holding: KvHolding, units: Sequence[int], unit_blocks: int) -> None:
        """Turns the holder's own blocks into cached units that others can find, as soon as they are written.

        Text that is cached already stays a copy of the holder's own, as it does in vLLM.
        """
        for unit in units:
            if unit not in self._references:
                self._references[unit] = 1
                self._unit_blocks[unit] = unit_blocks
                holding.units.append(unit)
                holding.num_own_blocks -= unit_blocks

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
        self._num_used += num_blocks
        return True

    def release(self, holding: KvHolding) -> None:
        """Gives everything back; the end of the text leaves the cache before its beginning."""
        self._num_used -= holding.num_own_blocks
        self._retire_nameless(holding.num_own_blocks)
        for unit in reversed(holding.units):
            self._references[unit] -= 1
            if not self._references[unit]:
                num_blocks = self._unit_blocks[unit]
                self._idle[unit] = num_blocks
                self._num_idle += num_blocks
                self._num_used -= num_blocks
        if self._num_used < 0 or holding.num_own_blocks < 0:
            raise InvariantViolation("more KV blocks were given back than were taken")
        holding.num_own_blocks = 0
        holding.units = []

    def _retire_nameless(self, num_blocks: int) -> None:
        """Text that nobody can find again waits its turn to be overwritten, like any other."""
        if not num_blocks:
            return
        if not self._references:  # there is no text to be pushed out, so the order can't matter
            self._num_untouched += num_blocks
            return
        self._num_nameless += 1
        self._idle[-self._num_nameless] = num_blocks
        self._num_idle += num_blocks

    def _evict(self, num_blocks: int) -> None:
        """Makes at least ``num_blocks`` untouched again, least recently used first; a unit goes as a whole."""
        while num_blocks > 0:
            unit, freed = self._idle.popitem(last=False)
            if unit in self._references:
                del self._references[unit], self._unit_blocks[unit]
            elif freed > num_blocks:
                self._idle[unit] = freed - num_blocks
                self._idle.move_to_end(unit, last=False)
                freed = num_blocks
            num_blocks -= freed
            self._num_idle -= freed
            self._num_untouched += freed

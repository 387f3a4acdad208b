"""What this gateway believes to be in the replicas' prefix caches, from the prompts that were sent to them."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress, islice

from policies.errors import ConfigError
from policies.views import RequestView

NOTHING: Mapping[str, int] = {}


class PrefixIndex:
    """Which replica has how much of a prompt? Each is taken to keep the blocks that it was sent last.

    A block's number stands for all the text up to and including it, so a replica that has a block has all blocks
    before it, and a look-up is a search for the depths at which replicas drop out, not a walk over the blocks. A
    prompt's blocks are used from its end to its beginning: among the least recently used, no block ever goes before
    one that follows it.

    Memory: about 115 bytes for a block that one replica has, about 75 more for each further replica that has it.
    Complexity: a look-up is O(d log b) for b blocks and d different depths, plus the replicas that match; ``sent`` is
        O(b).
    Failure mode: unless engines say it, it does not know what they throw out for answers and running requests, nor,
        without a load coordinator, what other gateways send, and each of these makes it expect what is not there; set
        ``blocks_per_replica`` below what the engine holds then. Block numbers decide about speed alone: prompts that
        collide are sent to the same replica, never mixed.

    Args:
        blocks_per_replica: Blocks that an engine keeps; what is longer is known by its beginning.
        max_blocks: Blocks in all, each counted for every replica that has it; replicas get equal shares.
        min_blocks: Shorter matches don't count: the first block is often the same in everybody's prompt.

    Raises:
        ConfigError: A number below 1, or ``min_blocks`` above ``blocks_per_replica``.
    """

    def __init__(self, *, blocks_per_replica: int = 6144, max_blocks: int = 524_288, min_blocks: int = 2) -> None:
        for name, value in (("blocks_per_replica", blocks_per_replica), ("max_blocks", max_blocks)):
            if value < 1:
                raise ConfigError(f"policies.prefixes.params.{name}", value, "at least 1")
        if not 1 <= min_blocks <= blocks_per_replica:
            allowed = f"1 to blocks_per_replica, which is {blocks_per_replica}"
            raise ConfigError("policies.prefixes.params.min_blocks", min_blocks, allowed)
        self._blocks_per_replica = blocks_per_replica
        self._max_blocks = max_blocks
        self._min_blocks = min_blocks
        self._share = blocks_per_replica
        self._holders: dict[int, int] = {}  # a bit for each replica that has the block
        self._slots: dict[str, int] = {}  # the number of a replica's bit
        self._replica_ids: list[str] = []  # by that number; empty where it is free
        self._used: list[dict[int, None]] = []  # by that number: the replica's blocks, least recently used first
        self._asked: tuple[int, ...] | None = None
        self._asked_block_tokens = 0
        self._answer = NOTHING

    @property
    def num_blocks(self) -> int:
        """Blocks in all, each counted for every replica that has it."""
        return sum(len(used) for used in self._used)

    def cached_tokens(self, request: RequestView) -> Mapping[str, int]:
        """Leading tokens of the prompt that each replica has in its cache, by replica id, the longest match first."""
        blocks = request.prefix_blocks
        if blocks is not self._asked or request.prefix_block_tokens != self._asked_block_tokens:
            self._asked, self._asked_block_tokens = blocks, request.prefix_block_tokens
            self._answer = self._look_up(blocks, request.prefix_block_tokens)
        return self._answer

    def sent(self, request: RequestView, replica_id: str) -> None:
        """A replica computes this prompt now, and will have it in its cache."""
        self._put(request.prefix_blocks, replica_id)

    def sent_elsewhere(self, blocks: tuple[int, ...], replica_id: str) -> None:
        """The same, by another gateway."""
        self._put(blocks, replica_id)

    def _put(self, prompt: tuple[int, ...], replica_id: str) -> None:
        slot = self._slot_of(replica_id)
        used, bit = self._used[slot], 1 << slot
        blocks = prompt[: self._share]
        for block in blocks:
            used.pop(block, None)
        used.update(dict.fromkeys(reversed(blocks)))
        holders, get = self._holders, self._holders.get
        for block in blocks:
            holders[block] = get(block, 0) | bit
        self._shrink(slot)
        self._asked = None

    def cache_changed(self, replica_id: str, stored: tuple[int, ...], dropped: tuple[int, ...]) -> None:
        """A replica's engine has said which blocks have come into its cache and gone from it, a moment ago."""
        self._put(stored, replica_id)
        slot = self._slots[replica_id]
        used = self._used[slot]
        gone = [block for block in dropped if block in used]
        for block in gone:
            del used[block]
        self._drop(gone, 1 << slot)

    def forget(self, replica_id: str) -> None:
        """A replica has gone, and its cache with it."""
        slot = self._slots.pop(replica_id, None)
        if slot is None:
            return
        self._drop(self._used[slot], 1 << slot)
        self._used[slot] = {}
        self._replica_ids[slot] = ""
        self._share_out()
        self._asked = None

    def _look_up(self, blocks: tuple[int, ...], block_tokens: int) -> Mapping[str, int]:
        depth = self._min_blocks
        if len(blocks) < depth:
            return NOTHING
        get = self._holders.get
        holders = get(blocks[depth - 1], 0)
        found: list[tuple[int, int]] = []
        while holders:
            current = holders
            depth = bisect_left(blocks, True, lo=depth, key=lambda block: get(block, 0) != current)
            holders = get(blocks[depth], 0) if depth < len(blocks) else 0
            found.append((depth, current & ~holders))
        answer: dict[str, int] = {}
        for depth, dropped_out in reversed(found):
            answer |= dict.fromkeys(self._named(dropped_out), depth * block_tokens)
        return answer

    def _named(self, bits: int) -> Iterator[str]:
        return compress(self._replica_ids, map(int, reversed(f"{bits:b}")))

    def _slot_of(self, replica_id: str) -> int:
        slot = self._slots.get(replica_id)
        if slot is None:
            slot = self._replica_ids.index("") if "" in self._replica_ids else len(self._replica_ids)
            self._replica_ids[slot : slot + 1] = [replica_id]
            self._used[slot : slot + 1] = [{}]
            self._slots[replica_id] = slot
            self._share_out()
        return slot

    def _share_out(self) -> None:
        """Every replica's share of the blocks, now that there are more or fewer replicas."""
        self._share = min(self._blocks_per_replica, self._max_blocks // max(1, len(self._slots)))
        for slot in self._slots.values():
            self._shrink(slot)

    def _shrink(self, slot: int) -> None:
        used = self._used[slot]
        num_extra = len(used) - self._share
        if num_extra > 0:
            oldest = list(islice(used, num_extra))
            for block in oldest:
                del used[block]
            self._drop(oldest, 1 << slot)

    def _drop(self, blocks: Iterable[int], bit: int) -> None:
        """A replica does not have the blocks any more."""
        holders = self._holders
        for block in blocks:
            left = holders[block] ^ bit
            if left:
                holders[block] = left
            else:
                del holders[block]

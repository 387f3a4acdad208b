"""An engine's KV blocks, numbered as gateways number prompts' blocks."""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from routing.prefixes.block_hashes import TOKEN_TYPE, first_digest, next_digest


@dataclass(slots=True)
class _EngineBlock:
    """A block in an engine's cache.

    Args:
        digest: Of the text up to the last end of a gateway's block in it or before it.
        rest: The text after that.
        numbers: Of the gateways' blocks that end in it.
        num_copies: How often the engine has it.
    """

    digest: bytes
    rest: bytes
    numbers: tuple[int, ...]
    num_copies: int = 0


class EngineBlocks:
    """Takes in what an engine says of its prefix cache; says the same in gateways' blocks.

    A gateway's block is there when an engine's block is there in which it ends: an engine finds a block by all the text
    up to its end, and gives up the end of a text before its beginning. Where the engine's blocks are the larger ones it
    finds less than that at the end of a prompt, by less than one of its blocks.

    Memory: some 400 bytes for each of the engine's blocks, and the text of those that end within a gateway's.

    Args:
        block_tokens: Tokens in a gateway's block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_bytes = block_tokens * array(TOKEN_TYPE).itemsize
        self._blocks: dict[Hashable, _EngineBlock] = {}
        self._num_holders: dict[int, int] = {}
        self._changes: dict[int, bool] = {}

    def store(
        self, block_ids: Sequence[Hashable], parent_id: Hashable, token_ids: Sequence[int], cache_salt: str = ""
    ) -> None:
        """Engine blocks of consecutive text have come; those whose beginning is not known can't be numbered.

        Args:
            block_ids: In order of the text; at least one.
            parent_id: The one before the first; ``None``: there is none.
            token_ids: Their text.
            cache_salt: Of who finds them, where the text begins with them.
        """
        before = self._blocks.get(parent_id)
        if parent_id is None:
            before = _EngineBlock(first_digest(cache_salt=cache_salt), b"", ())
        block_tokens = len(token_ids) // len(block_ids)
        for number, block_id in enumerate(block_ids):
            if before is None:
                return
            block = self._blocks.get(block_id)
            if block is None:
                text = array(TOKEN_TYPE, token_ids[number * block_tokens : (number + 1) * block_tokens]).tobytes()
                block = self._blocks[block_id] = self._after(before, text)
                self._hold(block.numbers)
            block.num_copies += 1
            before = block

    def drop(self, block_ids: Sequence[Hashable]) -> None:
        """They have gone, or one copy of each."""
        for block_id in block_ids:
            block = self._blocks.get(block_id)
            if block is None:
                continue
            block.num_copies -= 1
            if not block.num_copies:
                del self._blocks[block_id]
                self._let_go(block.numbers)

    def clear(self) -> None:
        """All have gone."""
        self._changes |= dict.fromkeys(self._num_holders, False)
        self._num_holders.clear()
        self._blocks.clear()

    def take_changes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Gateways' blocks that have come since this was last asked, and those that have gone."""
        changes, self._changes = self._changes, {}
        stored = tuple(number for number, is_there in changes.items() if is_there)
        return stored, tuple(number for number, is_there in changes.items() if not is_there)

    def _hold(self, numbers: Sequence[int]) -> None:
        """Texts that part within an engine's block have the same gateways' blocks before that."""
        for number in numbers:
            self._num_holders[number] = self._num_holders.get(number, 0) + 1
            self._changes[number] = True

    def _let_go(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._num_holders[number] -= 1
            if not self._num_holders[number]:
                del self._num_holders[number]
                self._changes[number] = False

    def _after(self, before: _EngineBlock, text: bytes) -> _EngineBlock:
        digest, rest = before.digest, before.rest + text
        numbers: list[int] = []
        while len(rest) >= self._block_bytes:
            digest = next_digest(digest, rest[: self._block_bytes])
            rest = rest[self._block_bytes :]
            numbers.append(int.from_bytes(digest, "big"))
        return _EngineBlock(digest, rest, tuple(numbers))

"""What happens in an engine's prefix cache, told to gateways with what leaves the replica anyway."""

from collections.abc import Callable, Sequence

from deployments.wire.inner_hop import WithCacheChange
from engines.contract import Chunk, KvDropped, KvEvent, KvHandle, KvStored
from routing.prefixes.engine_blocks import EngineBlocks


class NoCacheChanges:
    """Nobody is told anything."""

    def with_changes(self, item: Chunk | KvHandle) -> Chunk | KvHandle | WithCacheChange:
        """The item as it is."""
        return item

    def clear(self) -> None:
        """Another engine has begun with an empty cache."""


class CacheChanges(NoCacheChanges):
    """Adds what has changed since the last time to an item, whichever gateway that goes to: it tells the others.

    Args:
        take_events: The engine's; see :meth:`engines.contract.Engine.take_kv_events`.
        block_tokens: Tokens in a gateway's block.
    """

    def __init__(self, take_events: Callable[[], Sequence[KvEvent]], block_tokens: int) -> None:
        self._take_events = take_events
        self._blocks = EngineBlocks(block_tokens)

    def clear(self) -> None:
        self._blocks.clear()

    def with_changes(self, item: Chunk | KvHandle) -> Chunk | KvHandle | WithCacheChange:
        """The item, and what has changed, if anything has."""
        for event in self._take_events():
            if isinstance(event, KvStored):
                self._blocks.store(event.block_ids, event.parent_id, event.token_ids, event.cache_salt)
            elif isinstance(event, KvDropped):
                self._blocks.drop(event.block_ids)
            else:
                self._blocks.clear()
        stored, dropped = self._blocks.take_changes()
        return WithCacheChange(item, stored, dropped) if stored or dropped else item

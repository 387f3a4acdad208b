"""Adapters of a store, as a gateway comes to know of them: when somebody asks for one, or for all."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cachetools import TTLCache

from deployments.adapters.registry import AdapterRegistry
from deployments.adapters.store import SEPARATOR, AdapterStore

LOGGER = logging.getLogger("ray.serve")
MISSING_S, MAX_MISSING = 10.0, 1024
"""How long a name is known to be none, and how many such names."""
LISTED_S = 30.0
"""How long a list of all of them is good for."""
PATIENCE_S = 10.0
"""How long a store may take to say something."""


class Stored(Protocol):
    """Looks for adapters that a registry does not have yet."""

    async def look_for(self, name: str) -> None:
        """Tells the registry of the adapter of that name, if there is one.

        Raises:
            OSError: The store can't be read.
        """
        ...

    async def look_for_all(self) -> None:
        """Tells the registry of all that there are; what can't be read is logged, and what was known stays."""
        ...


class NothingStored:
    """There is no store."""

    async def look_for(self, name: str) -> None: ...

    async def look_for_all(self) -> None: ...


class StoredAdapters:
    """Adapters named ``MODEL:FOLDER``, after the store's folders.

    Args:
        model: The model's own name.
        store: Where they are.
        registry: Is told of them, as if the configuration had listed them.
        now_s: The time, seconds, monotonic.
    """

    def __init__(self, model: str, store: AdapterStore, registry: AdapterRegistry, now_s: Callable[[], float]) -> None:
        self._prefix = f"{model}{SEPARATOR}"
        self._store = store
        self._registry = registry
        self._missing: TTLCache[str, bool] = TTLCache(MAX_MISSING, MISSING_S, timer=now_s)
        self._listed: TTLCache[str, bool] = TTLCache(1, LISTED_S, timer=now_s)
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def look_for(self, name: str) -> None:
        """See :class:`Stored`; of many that ask for one name at a time the store is asked once."""
        if not name.startswith(self._prefix) or self._registry.knows(name) or name in self._missing:
            return
        looking = self._looking.get(name)
        if looking is None:
            looking = self._looking[name] = asyncio.ensure_future(self._look_for(name))
            looking.add_done_callback(lambda _: self._looking.pop(name, None))
        await asyncio.shield(looking)

    async def _look_for(self, name: str) -> None:
        folder = name.removeprefix(self._prefix)
        if await asyncio.wait_for(asyncio.to_thread(self._store.has, folder), PATIENCE_S):
            self._say(name, folder)
        else:
            self._missing[name] = True

    async def look_for_all(self) -> None:
        """See :class:`Stored`; the store is asked every half minute at most."""
        if self._listed:
            return
        self._listed[""] = True
        try:
            folders = await asyncio.wait_for(asyncio.to_thread(self._store.folders), PATIENCE_S)
        except OSError as error:  # TimeoutError is one
            LOGGER.warning("the adapter store can't be read: %s", error)
            return
        for folder in folders:
            self._say(f"{self._prefix}{folder}", folder)

    def _say(self, name: str, folder: str) -> None:
        self._registry.say(name, self._store.adapter(name, folder).path, 0.0)

"""Adapters of a store, as a gateway comes to know of them: when somebody asks for one, or for all."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from cachetools import TTLCache

from deployments.adapters.registry import AdapterRegistry
from deployments.adapters.store import FOLDER_NAMES, SEPARATOR, AdapterStore

Said = TypeVar("Said")
LOGGER = logging.getLogger("ray.serve")
MISSING_S, MAX_MISSING = 10.0, 1024
"""How long a name is known to be none, and how many such names."""
MAX_LOOKING = 4
"""Questions that a store is asked at a time; others wait."""
LISTED_S = 30.0
"""How long a list of all of them is good for."""
PATIENCE_S = 10.0
"""How long a store may take to say something."""


def _is_name(name: str, prefix: str) -> bool:
    """Whether an adapter of a store can have that name."""
    return name.startswith(prefix) and FOLDER_NAMES.fullmatch(name, len(prefix)) is not None


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

    def close(self) -> None:
        """Ends what looks for them."""
        ...


class NothingStored:
    """There is no store."""

    async def look_for(self, name: str) -> None: ...

    async def look_for_all(self) -> None: ...

    def close(self) -> None: ...


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
        self._threads = ThreadPoolExecutor(MAX_LOOKING, "adapter-store")

    async def look_for(self, name: str) -> None:
        """See :class:`Stored`; of many that ask for one name at a time the store is asked once."""
        if not _is_name(name, self._prefix) or self._registry.knows(name) or name in self._missing:
            return
        looking = self._looking.get(name)
        if looking is None:
            looking = self._looking[name] = asyncio.ensure_future(self._look_for(name))
            looking.add_done_callback(partial(self._has_looked, name))
        await asyncio.shield(looking)

    async def _look_for(self, name: str) -> None:
        folder = name.removeprefix(self._prefix)
        if await self._answer(partial(self._store.has, folder)):
            self._say(name, folder)
        else:
            self._missing[name] = True

    def _has_looked(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._looking[name]
        task.cancelled() or task.exception()  # its waiters have it, if there are any left

    async def look_for_all(self) -> None:
        """See :class:`Stored`; the store is asked every half minute at most."""
        if self._listed:
            return
        self._listed[""] = True
        try:
            folders = await self._answer(self._store.folders)
        except OSError as error:  # TimeoutError is one
            LOGGER.warning("the adapter store can't be read: %s", str(error))
            return
        for folder in folders:
            self._say(f"{self._prefix}{folder}", folder)

    async def _answer(self, asking: Callable[[], Said]) -> Said:
        """What the store says, in threads of its own: one that hangs delays its own lookups alone."""
        asked = asyncio.get_running_loop().run_in_executor(self._threads, asking)
        return await asyncio.wait_for(asked, PATIENCE_S)

    def close(self) -> None:
        """See :class:`Stored`."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _say(self, name: str, folder: str) -> None:
        self._registry.say(name, self._store.adapter(name, folder).path, 0.0)

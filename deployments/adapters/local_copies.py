"""Adapters of buckets as folders of this machine: engines read nothing else."""

import asyncio
import hashlib
import logging
import shutil
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from cluster.private_folder import check_own, private_folder
from deployments.adapters.store import CONFIG, copy, without_credentials
from deployments.config import scheme_of
from engines.contract import Adapter
from policies.errors import ConfigError, EngineError, RequestInvalid

LOGGER = logging.getLogger("ray.serve")


class Copies(Protocol):
    """What a replica's engine is told of where an adapter is."""

    async def local(self, adapter: Adapter) -> Adapter:
        """The same adapter, at a place that the engine can read."""
        ...


class NoCopies:
    """The engine looks at no place."""

    async def local(self, adapter: Adapter) -> Adapter:
        return adapter


class LocalCopies:
    """Copies that all replicas on a machine share, made when one needs them. They stay: weights that change get another
    folder in the bucket.

    Args:
        folder: Where; made with the first copy, and writable by this user alone.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._root = folder
        self._there: dict[str, str] = {}

    async def local(self, adapter: Adapter) -> Adapter:
        """See :class:`Copies`.

        Raises:
            RequestInvalid: There is no such adapter.
            EngineError: The bucket can't be read, or other users may write where copies are.
        """
        if not scheme_of(adapter.path):
            return adapter
        if adapter.path not in self._there:
            try:
                self._there[adapter.path] = await asyncio.to_thread(self._copied, adapter.path)
            except FileNotFoundError as error:
                raise RequestInvalid(f"the adapter {adapter.name} is not there: {error}", "model") from error
            except (OSError, ConfigError) as error:
                raise EngineError(f"the adapter {adapter.name} can't be fetched: {error}") from error
        return Adapter(adapter.name, self._there[adapter.path])

    def _copied(self, uri: str) -> str:
        """A folder that is there whole or not at all; of several that want it one makes it."""
        folder = _own(self._root or private_folder() / "adapters") / hashlib.sha256(uri.encode()).hexdigest()[:32]
        with FileLock(folder.with_suffix(".lock")):
            if not (folder / CONFIG).is_file():
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                copy(uri, partial)
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
                LOGGER.info("adapter %s: copied to %s", without_credentials(uri), folder)
        return str(folder)


def _own(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own("model.adapter_store", folder)
    return folder

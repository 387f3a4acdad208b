"""Where a model's further adapters are: a folder or a bucket, with a folder in it for each of them."""

import re
from pathlib import Path
from typing import Any, Protocol

from deployments.config import scheme_of
from engines.contract import Adapter
from policies.errors import ConfigError

CONFIG = "adapter_config.json"
"""What a folder has that is an adapter's."""
FOLDER_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
SEPARATOR = ":"
"""Between the model's name and the folder's, in the name of an adapter from there; Ray Serve LLM has the same."""


class AdapterStore(Protocol):
    """Asked by one gateway; calls may take as long as a network does."""

    def folders(self) -> tuple[str, ...]:
        """Names of all folders that there are now; raises ``OSError``."""
        ...

    def has(self, folder: str) -> bool:
        """Whether an adapter is in the folder of that name now; raises ``OSError``."""
        ...

    def adapter(self, name: str, folder: str) -> Adapter:
        """One of them, as engines and replicas take it."""
        ...


class ArrowStore:
    """A folder on every node, or a bucket, read by Arrow; credentials are those of the environment.

    Args:
        place: Absolute path of the folder, or the URI of the bucket and the folder in it.

    Raises:
        ConfigError: Arrow is not installed, or knows no such place.
    """

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/")
        self._files, self._root = opened(self._place)

    def folders(self) -> tuple[str, ...]:
        from pyarrow import fs  # noqa: PLC0415 - only where there is a store

        found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = (each.base_name for each in found if each.type == fs.FileType.Directory)
        return tuple(sorted(name for name in names if FOLDER_NAMES.fullmatch(name)))

    def has(self, folder: str) -> bool:
        if not FOLDER_NAMES.fullmatch(folder):
            return False
        (found,) = self._files.get_file_info([f"{self._root}/{folder}/{CONFIG}"])
        return bool(found.is_file)

    def adapter(self, name: str, folder: str) -> Adapter:
        place, mark, options = self._place.partition("?")
        return Adapter(name, f"{place.rstrip('/')}/{folder}{mark}{options}")


def opened(place: str) -> tuple[Any, str]:
    """Arrow's file system for a folder or a URI, and what the place is called in it.

    Raises:
        ConfigError: Arrow is not installed, or knows no such place.
    """
    said = without_credentials(place)
    try:
        from pyarrow import fs  # noqa: PLC0415 - only where there is a store
    except ImportError as error:
        raise ConfigError("model.adapter_store", said, "nothing, or pyarrow beside it: spillway[store]") from error
    if not scheme_of(place):
        return fs.LocalFileSystem(), place
    try:
        files, root = fs.FileSystem.from_uri(place)
    except (ValueError, OSError, NotImplementedError) as error:
        raise ConfigError("model.adapter_store", said, f"a URI that Arrow can open: {error}") from error
    return files, root.rstrip("/")


def without_credentials(place: str) -> str:
    """A place as it may be written into logs and errors."""
    return re.sub("://[^/@]*@", "://", place)


def copy(uri: str, into: Path) -> None:
    """Copies what a folder of a bucket holds into one of this machine.

    Raises:
        FileNotFoundError: It has no adapter.
        OSError: The bucket can't be read.
    """
    from pyarrow import fs  # noqa: PLC0415 - only where there is a store

    files, root = opened(uri)
    (config,) = files.get_file_info([f"{root}/{CONFIG}"])
    if not config.is_file:
        raise FileNotFoundError(f"there is no {CONFIG} at {without_credentials(uri)}")
    fs.copy_files(root, str(into), source_filesystem=files, destination_filesystem=fs.LocalFileSystem())

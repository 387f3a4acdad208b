"""Where a model's further adapters are: a folder or a bucket, with a folder in it for each of them."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from deployments.config import scheme_of
from engines.contract import Adapter
from policies.errors import ConfigError

CONFIG = "adapter_config.json"
"""What a folder has that is an adapter's."""
FOLDER_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
SEPARATOR = ":"
"""Between the model's name and the folder's, in the name of an adapter from there; Ray Serve LLM has the same."""


class AdapterStore:
    """A folder on every node, or a bucket, read by Arrow; credentials are those of the environment.

    It is opened with its first question, so that a bucket that can't be reached at the start may be later. A question
    takes as long as a network does.

    Args:
        place: Absolute path of the folder, or the URI of the bucket and the folder in it.
    """

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/")
        self._is_folder = scheme_of(place) in ("", "file")

    def folders(self) -> tuple[str, ...]:
        """Names of all folders with an adapter that there are now; raises ``OSError``."""
        from pyarrow import fs  # noqa: PLC0415 - only where there is a store

        with _errors_of_the_place():
            found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=not self._is_folder))
        names = [each.base_name for each in found if each.type == fs.FileType.Directory]
        return tuple(sorted(self._adapters_among(name for name in names if FOLDER_NAMES.fullmatch(name))))

    def has(self, folder: str) -> bool:
        """Whether an adapter is in the folder of that name now; raises ``OSError``."""
        if not FOLDER_NAMES.fullmatch(folder):
            return False
        if self._adapters_among([folder]):
            return True
        if self._is_folder and not Path(self._root).is_dir():
            raise NotADirectoryError(f"{self._root} is not there")
        return False

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        return opened(self._place)

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _adapters_among(self, folders: Iterable[str]) -> list[str]:
        asked = list(folders)
        with _errors_of_the_place():
            found = self._files.get_file_info([f"{self._root}/{folder}/{CONFIG}" for folder in asked])
        return [folder for folder, info in zip(asked, found, strict=True) if info.is_file]

    def adapter(self, name: str, folder: str) -> Adapter:
        """One of them, as engines and replicas take it."""
        place, mark, options = self._place.partition("?")
        return Adapter(name, f"{place.rstrip('/')}/{folder}{mark}{options}")


@contextmanager
def _errors_of_the_place() -> Iterator[None]:
    """Arrow has ``ValueError`` of names that a place can't have, too."""
    try:
        yield
    except (ValueError, ConfigError) as error:
        raise OSError(str(error)) from error


def opened(place: str) -> tuple[Any, str]:
    """Arrow's file system for a folder or a URI, and what the place is called in it.

    Raises:
        ConfigError: Arrow is not installed, or knows no such place.
        OSError: The place can't be reached.
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
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            "model.adapter_store", said, f"a URI that Arrow can open: {without_credentials(str(error))}"
        ) from error
    return files, root.rstrip("/")


def check_place(place: str) -> None:
    """Checks what can be checked of a bucket's URI before anything starts.

    Raises:
        ConfigError: Arrow is not installed, or can't make anything of it.
    """
    if scheme_of(place):
        with suppress(OSError):  # it can't be reached from here; gateways are elsewhere
            opened(place)


def without_credentials(place: str) -> str:
    """A place as it may be written into logs and errors."""
    return re.sub("://.*@", "://", place)


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

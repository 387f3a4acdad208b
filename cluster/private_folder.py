"""Folders of this user's alone below the system's temporary one, where anybody may have made something of that name."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from policies.errors import ConfigError


def private_folder() -> Path:
    """The one folder that all of this user's is in, made where it is not there; short, as sockets' paths must be.

    Raises:
        ConfigError: Somebody else has made it, or it is a link.
    """
    folder = Path(tempfile.gettempdir()) / f"spillway-{os.getuid()}"
    with suppress(FileExistsError):  # which may be anything
        folder.mkdir(mode=0o700)
    check_own("TMPDIR", folder)
    if folder.lstat().st_mode & 0o077:  # of a version that left it readable
        folder.chmod(0o700)
    return folder


def check_own(field: str, folder: Path) -> None:
    """Whether a folder is this user's, and nobody else may change what is in it.

    Args:
        field: What to name in the error.
        folder: Is there.

    Raises:
        ConfigError: It is not, or it is a link, or no folder.
    """
    found = folder.lstat()
    others_may_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others_may_write:
        raise ConfigError(field, str(folder), "a folder that is this user's alone; whoever made this one is not")

"""What is installed in this environment, and where it differs from the lock."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions

from packaging.utils import canonicalize_name
from packaging.version import Version

from supply_chain.lockfile import Locked

NOT_LOCKED = frozenset({"pip", "spillway"})
"""pip comes with Python and installs the lock; spillway is this tree."""

Installed = Mapping[str, Distribution]
"""By name."""


def installed() -> Installed:
    """The distributions of this environment; of several with one name the one that is imported."""
    found: dict[str, Distribution] = {}
    for each in distributions():
        found.setdefault(canonicalize_name(each.metadata["Name"]), each)
    return found


def differences(entries: Sequence[Locked], versions: Mapping[str, str]) -> list[str]:
    """A line for each package that is not installed as the lock says.

    Args:
        entries: Of the lock.
        versions: What is installed, by name.
    """
    locked = {each.name: each.version for each in entries}
    found = []
    for name, version in sorted(locked.items()):
        if name not in versions:
            found.append(f"{name} {version}: not installed")
        elif not _is_version(versions[name], version):
            found.append(f"{name} {version}: {versions[name]} is installed")
    foreign = sorted(versions.keys() - locked.keys() - NOT_LOCKED)
    return found + [f"{name} {versions[name]}: installed, and not in the lock" for name in foreign]


def versions_of(present: Iterable[tuple[str, Distribution]]) -> dict[str, str]:
    """The versions of distributions, by name."""
    return {name: each.version for name, each in present}


def _is_version(version: str, locked: str) -> bool:
    """A build of it, such as ``+cpu``, is that version."""
    return version == locked or Version(version).public == locked

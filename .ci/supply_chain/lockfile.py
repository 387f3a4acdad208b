"""Reads and writes requirements-cpu.lock: each package at one version, with the SHA-256 of each of its files.

One file of a package has a hash here that is not everybody's: torch's CPU build is made for each Python by itself, and
this lock knows one of them. So its line is for that Python alone, and on another one it is installed without a hash:
:data:`WITHOUT_HASHES` has the rest of the condition, and nothing else may be in there.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements-cpu.lock"
WITHOUT_HASHES = ROOT / ".ci" / "without-hashes.txt"
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One package of the lock.

    Args:
        name: As indexes have it.
        version: The one that is installed; a local part such as ``+cpu`` is the build's and stands nowhere.
        hashes: SHA-256 of each file that may be installed.
        marker: Where it is installed; empty: everywhere.
    """

    name: str
    version: str
    hashes: frozenset[str]
    marker: str = ""

    @property
    def is_for_this_python(self) -> bool:
        """Whether pip would install it here."""
        return not self.marker or Marker(self.marker).evaluate()

    def lines(self) -> str:
        """As the lock has it."""
        head = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        return " \\\n".join([head, *(f"    --hash=sha256:{each}" for each in sorted(self.hashes))]) + "\n"


def read_lock(text: str) -> list[Locked]:
    """The packages of a lock.

    Args:
        text: Of the file.

    Raises:
        ValueError: A line is not a package at one version; it is named.
    """
    joined = re.sub(r"\\\n", " ", text)
    return [_read_line(line) for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def without_hashes(entries: Iterable[Locked]) -> list[str]:
    """Names of those that any file would do for."""
    return [each.name for each in entries if not each.hashes]


def render(header: Sequence[str], entries: Iterable[Locked]) -> str:
    """A file of packages, by name.

    Args:
        header: Lines of the comment above.
        entries: In any order.
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header)
    return comment + "".join(each.lines() for each in sorted(entries, key=lambda each: each.name))


def _read_line(line: str) -> Locked:
    hashes = HASH.findall(line)
    requirement = Requirement(HASH.sub("", line).strip())
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or pins[0].version.endswith("*"):
        raise ValueError(f"{line.split(maxsplit=1)[0]}: a lock has each package at one version, NAME==VERSION")
    return Locked(
        name=canonicalize_name(requirement.name),
        version=pins[0].version,
        hashes=frozenset(hashes),
        marker=str(requirement.marker or ""),
    )

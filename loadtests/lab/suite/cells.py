"""Cells of the suite: users of one kind at one point of the axes, dealt into two parts by a hash of their names."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from policies.errors import ConfigError

Value = float | int | str
FAMILY, PART = "family", "part"


class Part(StrEnum):
    """What a cell is for."""

    TUNING = "tuning"
    JUDGING = "judging"


@dataclass(frozen=True, slots=True)
class SuiteCell:
    """One workload.

    Args:
        family: Of users.
        at: Its value on each axis of the family.
    """

    family: str
    at: tuple[tuple[str, Value], ...]

    @property
    def name(self) -> str:
        """The family and all values: unique in the suite, and all that decides what the cell is for."""
        return " ".join((self.family, *(f"{axis}={_written(value)}" for axis, value in self.at)))

    @property
    def values(self) -> dict[str, Value]:
        """Its value on each axis of its family."""
        return dict(self.at)


def in_order_of_hash(cells: Iterable[SuiteCell], edition: int) -> list[SuiteCell]:
    """Cells in an order that depends on the edition and their names alone."""
    return sorted(cells, key=lambda cell: hashlib.sha256(f"{edition} {cell.name}".encode()).digest())


def wanted_values(texts: Sequence[str], known: Mapping[str, Sequence[Value]]) -> dict[str, list[Value]]:
    """Reads ``AXIS=VALUE,VALUE`` of each axis.

    Args:
        texts: As the command line has them.
        known: Every axis with all its values in the suite.

    Raises:
        ConfigError: There is no such axis, or no such value on it.
    """
    wanted: dict[str, list[Value]] = {}
    for text in texts:
        axis, _, values = text.partition("=")
        if axis not in known:
            raise ConfigError("--where", text, f"AXIS=VALUE,VALUE; AXIS is one of {list(known)}")
        written = {_written(value): value for value in known[axis]}
        for each in values.split(","):
            name = _as_number(each)
            if name not in written:
                raise ConfigError(f"--where {axis}", each, f"one of {list(written)}")
            wanted.setdefault(axis, []).append(written[name])
    return wanted


def _written(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _as_number(text: str) -> str:
    """A number as axes write it, so that 1.0 and 1 are the same; anything else as it is."""
    try:
        return _written(float(text))
    except ValueError:
        return text

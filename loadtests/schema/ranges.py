"""The checks that a workload's dataclasses make of their own fields."""

import math
from collections.abc import Iterable, Sized

from policies.errors import ConfigError

MOST_TOKENS = 100_000_000


def require(is_allowed: bool, field: str, value: object, allowed: str) -> None:
    """Raises ``ConfigError`` with the three parts unless the value is allowed."""
    if not is_allowed:
        raise ConfigError(field, value, allowed)


def require_positive(field: str, value: float) -> None:
    """A finite number above 0."""
    require(0 < value < math.inf, field, value, "a finite number above 0")


def require_not_negative(field: str, value: float) -> None:
    """A finite number, 0 included."""
    require(0 <= value < math.inf, field, value, "a finite number, at least 0")


def require_at_least(field: str, value: float, least: float) -> None:
    """A finite number that is not below ``least``."""
    require(least <= value < math.inf, field, value, f"a finite number, at least {least:g}")


def require_tokens(field: str, value: int, least: int) -> None:
    """A number of tokens in one request."""
    require(least <= value <= MOST_TOKENS, field, value, f"{least:,} to {MOST_TOKENS:,}")


def require_some(field: str, value: Sized) -> None:
    """At least one element."""
    require(len(value) > 0, field, value, "at least one element")


def require_no_repeats(field: str, names: Iterable[str]) -> None:
    """No name twice."""
    names = list(names)
    repeated = sorted({each for each in names if names.count(each) > 1})
    require(not repeated, field, repeated, "every name once")

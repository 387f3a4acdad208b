"""What a parameter of an admission policy may be."""

import math
from collections.abc import Sequence

from policies.errors import ConfigError


def check_number(name: str, value: float, low: float, high: float = math.inf) -> None:
    """A finite number from ``low`` to ``high``.

    Raises:
        ConfigError: It is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        allowed = f"a finite number from {low:g} on" if high == math.inf else f"a number from {low:g} to {high:g}"
        raise ConfigError(f"policies.admission.params.{name}", value, allowed)


def check_positive(name: str, value: float) -> None:
    """A finite number above 0.

    Raises:
        ConfigError: It is something else.
    """
    check_number(name, value, 0)
    if not value:
        raise ConfigError(f"policies.admission.params.{name}", value, "a finite number above 0")


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """One of the names in ``allowed``.

    Raises:
        ConfigError: It is something else.
    """
    if value not in allowed:
        raise ConfigError(f"policies.admission.params.{name}", value, f"one of {list(allowed)}")

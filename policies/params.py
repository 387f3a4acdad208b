"""What a parameter of a policy may be."""

import math
from collections.abc import Sequence

from policies.errors import ConfigError


def check_number(question: str, name: str, value: float, low: float, high: float = math.inf) -> None:
    """A finite number from ``low`` to ``high``.

    Args:
        question: What the policy answers, such as ``admission``.
        name: The parameter's.
        value: Its value.
        low: The least.
        high: The most.

    Raises:
        ConfigError: It is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        allowed = f"a finite number from {low:g} on" if high == math.inf else f"a number from {low:g} to {high:g}"
        raise ConfigError(f"policies.{question}.params.{name}", value, allowed)


def check_positive(question: str, name: str, value: float) -> None:
    """A finite number above 0.

    Raises:
        ConfigError: It is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"policies.{question}.params.{name}", value, "a finite number above 0")


def check_choice(question: str, name: str, value: str, allowed: Sequence[str]) -> None:
    """One of the names in ``allowed``.

    Raises:
        ConfigError: It is something else.
    """
    if value not in allowed:
        raise ConfigError(f"policies.{question}.params.{name}", value, f"one of {list(allowed)}")

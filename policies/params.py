"""What a parameter of a policy may be."""

import math
from collections.abc import Sequence

from policies.errors import ConfigError


class Params:
    """The parameters of the policies that answer one question.

    Args:
        question: Which, as a configuration calls it, such as ``admission``.
    """

    def __init__(self, question: str) -> None:
        self._field = f"policies.{question}.params"

    def check_number(self, name: str, value: float, low: float, high: float = math.inf) -> None:
        """A finite number from ``low`` to ``high``.

        Args:
            name: The parameter's.
            value: Its value.
            low: The least.
            high: The most.

        Raises:
            ConfigError: It is something else.
        """
        if not _is_number(value) or not low <= value <= high:
            allowed = f"a finite number from {low:g} on" if high == math.inf else f"a number from {low:g} to {high:g}"
            raise ConfigError(f"{self._field}.{name}", value, allowed)

    def check_positive(self, name: str, value: float) -> None:
        """A finite number above 0.

        Raises:
            ConfigError: It is something else.
        """
        if not _is_number(value) or value <= 0:
            raise ConfigError(f"{self._field}.{name}", value, "a finite number above 0")

    def check_choice(self, name: str, value: str, allowed: Sequence[str]) -> None:
        """One of the names in ``allowed``.

        Raises:
            ConfigError: It is something else.
        """
        if value not in allowed:
            raise ConfigError(f"{self._field}.{name}", value, f"one of {list(allowed)}")

    def check_some(self, name: str, value: Sequence[str], allowed: Sequence[str]) -> None:
        """A list of at least one of the names in ``allowed``, none of them twice.

        Raises:
            ConfigError: It is something else.
        """
        is_list = isinstance(value, list | tuple) and len(value) > 0
        if not is_list or not all(each in allowed for each in value) or len(set(value)) < len(value):
            raise ConfigError(f"{self._field}.{name}", value, f"a list of some of {list(allowed)}, each once")


def _is_number(value: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


ADMISSION = Params("admission")
BALANCING = Params("balancing")
EJECTION = Params("ejection")
HEDGING = Params("hedging")
RETRYING = Params("retrying")
SCALING = Params("scaling")
SHEDDING = Params("shedding")

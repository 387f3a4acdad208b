"""How much of an answer is given up at which pressure, and what the parameters of these policies may be."""

import math
from collections.abc import Mapping

from policies.errors import ConfigError
from policies.views import BacklogView, Priority, RequestView

FIELD = "policies.degradation.params"
LEAST_S = 1e-9
"""In place of 0 where something is divided by it."""


class Ramp:
    """Nothing is given up below one pressure, all that may be given up from another one on, and a part in between.

    Pressure is the predicted wait for the first stage over the SLO of the time to first token: 1 means
    that the SLO is used up by waiting. Both come from what is there now, so there is nothing to be remembered.

    Args:
        from_pressure: Where it begins.
        full_pressure: Where it ends.

    Raises:
        ConfigError: A number below 0, or in the wrong order.
    """

    def __init__(self, from_pressure: float, full_pressure: float) -> None:
        check_least("from_pressure", from_pressure, 0)
        check_least("full_pressure", full_pressure, 0)
        if full_pressure <= from_pressure:
            allowed = f"more than from_pressure, which is {from_pressure:g}"
            raise ConfigError(f"{FIELD}.full_pressure", full_pressure, allowed)
        self._from_pressure = from_pressure
        self._full_pressure = full_pressure

    def severity(self, request: RequestView, backlog: BacklogView) -> float:
        """Which part of what may be given up is given up, 0 to 1."""
        above = pressure(request, backlog) - self._from_pressure
        return min(1.0, max(0.0, above / (self._full_pressure - self._from_pressure)))


def pressure(request: RequestView, backlog: BacklogView) -> float:
    """The wait that a request has before it, at the drain rate of late, over its SLO; 0 and more."""
    slo_s = request.first_token_by_s - request.arrival_s
    return backlog.ahead_s / max(backlog.work_per_s, LEAST_S) / max(slo_s, LEAST_S)


def check_least(name: str, value: float, least: float) -> None:
    """A finite number that is not too small.

    Raises:
        ConfigError: It is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        raise ConfigError(f"{FIELD}.{name}", value, f"a finite number from {least:g} on")


def by_class(name: str, given: Mapping[str, float], least: float) -> Mapping[Priority, float]:
    """What a configuration says of classes, by class.

    Args:
        name: The parameter.
        given: A number for each class that it names.
        least: What it has to be at least.

    Raises:
        ConfigError: It names no class or an unknown one, or a number is too small.
    """
    classes = [priority.value for priority in Priority]
    if not isinstance(given, Mapping) or not given or not given.keys() <= set(classes):
        raise ConfigError(f"{FIELD}.{name}", given, f"a number for one or more of the classes {classes}")
    for priority, value in given.items():
        check_least(f"{name}.{priority}", value, least)
    return {Priority(priority): value for priority, value in given.items()}

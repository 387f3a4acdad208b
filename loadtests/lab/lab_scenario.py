"""A scenario with other values for some of its fields: what an experiment in the lab starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from loadtests.lab.capacity import simulated_capacity_rps
from loadtests.scenario.fields import Settings
from loadtests.scenario.scenario import Scenario, load
from policies.errors import ConfigError

LOAD, RATE = "load", "rate"
"""What can be set beside a file's fields: the load in capacities, or by how much its own rates are multiplied."""
MOST = 20.0


@dataclass(frozen=True, kw_only=True)
class LabScenario:
    """A scenario file, and what is different in it.

    ``load`` is a share of what the fleet can do: all rates are multiplied so that ``load * capacity`` logical requests
    a second are offered in the mean, where ``capacity`` is what a flood of them completes on this fleet with
    ``least_work_left``, without lanes and without admission. ``rate`` multiplies the rates as they are.

    Args:
        name: A scenario of the library, or a file.
        settings: Values by path, and ``load`` or ``rate``.
    """

    name: str
    settings: Settings = field(default_factory=dict)

    def having(self, settings: Settings) -> "LabScenario":
        """The same with more differences, which go before those that are there."""
        return LabScenario(name=self.name, settings={**self.settings, **settings})

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario.

        Raises:
            ConfigError: There is none, or a difference does not fit the rest of it.
        """
        fields = {path: value for path, value in self.settings.items() if path not in (LOAD, RATE)}
        return at_load(load(self.name, fields), self.settings)


def scenario(name: str, settings: Mapping[str, Any] | None = None) -> LabScenario:
    """A scenario of the library or of a file, with other values for some of its fields.

    Args:
        name: ``ragged``, or a path that ends in ``.yaml``.
        settings: For example ``{"fleet.num_gateways": 4, "load": 0.8}``; paths are those of
            :mod:`loadtests.scenario.fields`.

    Raises:
        ConfigError: There is none, or a difference does not fit the rest of it.
    """
    found = LabScenario(name=name, settings=dict(settings or {}))
    _ = found.scenario
    return found


def at_load(read: Scenario, settings: Settings, kept_in: Path | None = None) -> Scenario:
    """A scenario at the load, or at the multiple of its rates, that the settings name.

    Args:
        read: The scenario.
        settings: With one of them, or none.
        kept_in: Where capacities are kept; ``None``: nowhere.

    Raises:
        ConfigError: Both are named, or one is no number above 0.
    """
    if LOAD in settings and RATE in settings:
        raise ConfigError(RATE, settings[RATE], f"nothing: {LOAD} is given too")
    for name in (LOAD, RATE):
        if name in settings:
            factor = _number(name, settings[name])
            if name == LOAD:
                factor *= simulated_capacity_rps(read, kept_in) / read.workload.requests_per_s(read.duration_s)
            return read.changed(workload=read.workload.scaled(factor))
    return read


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
        raise ConfigError(name, value, f"a number above 0, at most {MOST:g}")
    return float(value)

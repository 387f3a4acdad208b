"""The suite that policies are chosen and judged on: a grid of workloads, split by a hash of each cell's name.

``python -m loadtests.lab.run_suite`` runs it.
"""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from loadtests.lab.lab_scenario import at_load
from loadtests.scenario.fields import with_fields
from loadtests.scenario.scenario import Scenario
from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import Strict
from policies.errors import ConfigError

FILE = Path(__file__).with_name("suite.yaml")


class Part(StrEnum):
    """What a cell is for."""

    TUNING = "tuning"
    JUDGING = "judging"


class Axes(Strict):
    """What every family is crossed with.

    Args:
        cv: How bursty arrivals are, as the coefficient of variation of independent gaps.
        load: In capacities of the fleet.
        gateways: How many there are.
        max_requests: Of a client for each of its logical requests; above 1 with the openai package's client retries.
    """

    cv: tuple[float, ...] = Field(min_length=1)
    load: tuple[float, ...] = Field(min_length=1)
    gateways: tuple[int, ...] = Field(min_length=1)
    max_requests: tuple[int, ...] = Field(min_length=1)


class Family(Strict):
    """Users of one kind.

    Args:
        description: What they are like.
        settings: Fields of the base scenario, by path.
        burstiness: Paths that get the cell's ``cv``.
    """

    description: str
    settings: dict[str, Any]
    burstiness: tuple[str, ...] = Field(min_length=1)


class PolicySet(Strict):
    """What is compared.

    Args:
        description: What it is.
        settings: Fields of the base scenario, by path.
    """

    description: str
    settings: dict[str, Any]


class Suite(Strict):
    """A suite's file.

    Args:
        version: Of the format.
        edition: Part of what decides which cells are for judging; another one after a choice was judged.
        seeds: The same for every policy.
        judging_fraction: Of all cells.
        base: The scenario that all others are made from.
        axes: What every family is crossed with.
        families: By name.
        policies: By name.
    """

    version: Literal[1]
    edition: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    judging_fraction: float = Field(gt=0, lt=1)
    base: dict[str, Any]
    axes: Axes
    families: dict[str, Family] = Field(min_length=1)
    policies: dict[str, PolicySet] = Field(min_length=1)
    _folder: Path = PrivateAttr(default=FILE.parent)

    def cells(self) -> Iterator["SuiteCell"]:
        """All of them, family by family."""
        axes = self.axes
        for family in self.families:
            for point in itertools.product(axes.cv, axes.load, axes.gateways, axes.max_requests):
                yield SuiteCell(family, *point)

    def part_of(self, cell: "SuiteCell") -> Part:
        """Which part a cell is in: that depends on the edition and the cell's name alone."""
        digest = hashlib.sha256(f"{self.edition} {cell.name}".encode()).digest()
        is_judging = int.from_bytes(digest[:8], "big") < self.judging_fraction * 2**64
        return Part.JUDGING if is_judging else Part.TUNING

    def scenario(self, cell: "SuiteCell", policy: str) -> Scenario:
        """A cell with a policy.

        Raises:
            ConfigError: They can't be together.
        """
        family = self.families[cell.family]
        settings = {
            **family.settings,
            **dict.fromkeys(family.burstiness, cell.cv),
            "fleet.num_gateways": cell.gateways,
            "clients": {"max_requests": 1} if cell.max_requests == 1 else "openai",
            **self.policies[policy].settings,
        }
        try:
            return at_load(validate(Scenario, with_fields(self.base, settings), self._folder), {"load": cell.load})
        except ConfigError as error:
            raise ConfigError(f"{cell.name}, {policy}: {error.field}", error.value, error.allowed) from error


@dataclass(frozen=True, slots=True)
class SuiteCell:
    """One workload; fields are those of :class:`Axes`."""

    family: str
    cv: float
    load: float
    gateways: int
    max_requests: int

    @property
    def name(self) -> str:
        return (
            f"{self.family} cv={self.cv:g} load={self.load:g} gateways={self.gateways} max_requests={self.max_requests}"
        )


def read_suite(path: Path = FILE) -> Suite:
    """Reads a suite.

    Raises:
        ConfigError: Something in it is wrong.
    """
    suite = validate(Suite, read_yaml(path), path.parent)
    suite._folder = path.parent
    return suite

"""Figures of capacity plans: formulas, worked out and held against what is told."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from loadtests.plan.formulas import FUNCTIONS, value_of
from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import Strict
from policies.errors import ConfigError

FILE = Path(__file__).with_name("figures.yaml")


class Instead(Strict):
    """What holds where a figure's assumption does not.

    Args:
        name: Of what it says; the figure's own where it is left out.
        formula: As the figure's.
        why: A sentence.
    """

    name: str = ""
    formula: str
    why: str


class Figure(Strict):
    """One figure.

    Args:
        name: By which later formulas of its group know it.
        formula: Of the group's inputs, of figures before it and of :data:`loadtests.plan.formulas.FUNCTIONS`.
        said: What is told, with as many digits as are told.
        assumes: What has to be so.
        instead: What holds where it is not.
    """

    name: str
    formula: str
    said: Decimal | None = None
    assumes: str = ""
    instead: Instead | None = None


class Group(Strict):
    """Figures with the same inputs.

    Args:
        name: A heading.
        about: A sentence on the case.
        inputs: Numbers by name.
        figures: In the order in which they are worked out.
    """

    name: str
    about: str = ""
    inputs: dict[str, float] = Field(default_factory=dict)
    figures: tuple[Figure, ...]

    @model_validator(mode="after")
    def _has_a_name_for_each(self) -> Self:
        names = [*self.inputs, *(each.name for each in self.figures)]
        if taken := sorted({each for each in names if names.count(each) > 1 or each in FUNCTIONS}):
            raise ConfigError("figures", taken, f"names that are used once, and none of {', '.join(FUNCTIONS)}")
        return self


class _File(Strict):
    version: Literal[1]
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedFigure:
    """A figure and what it comes to.

    Args:
        figure: Which.
        value: What its formula gives.
        instead_value: What the formula of ``instead`` gives; NaN where there is none.
    """

    figure: Figure
    value: float
    instead_value: float = math.nan

    @property
    def is_as_said(self) -> bool:
        """Whether the value is what is told, to the last digit or cut off before it; nothing told is never wrong."""
        said = self.figure.said
        if said is None:
            return True
        if not math.isfinite(self.value):
            return False
        num_decimals = -int(said.as_tuple().exponent)
        shifted = Decimal(repr(self.value)).scaleb(num_decimals)
        return said.scaleb(num_decimals) in (shifted.to_integral_value(each) for each in (ROUND_HALF_UP, ROUND_DOWN))


def read_figures(path: Path = FILE) -> tuple[Group, ...]:
    """The groups of a file of figures.

    Raises:
        ConfigError: The file can't be used; field, value and what is allowed.
    """
    return validate(_File, read_yaml(path), path.parent).groups


def worked_out(group: Group) -> Iterator[WorkedFigure]:
    """The figures of a group with their values.

    Raises:
        ConfigError: A formula can't be worked out: it names what is not known, or divides by 0.
    """
    names: dict[str, float] = dict(group.inputs)
    values = {}
    for figure in group.figures:
        values[figure.name] = names[figure.name] = value_of(figure.name, figure.formula, names)
    for figure in group.figures:
        instead = figure.instead
        right = math.nan if instead is None else value_of(f"{figure.name}.instead", instead.formula, names)
        yield WorkedFigure(figure=figure, value=values[figure.name], instead_value=right)

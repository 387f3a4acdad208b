"""Choices side by side in pairs: whether two of them together are worse than the better one alone.

A composition's file names some choices, each an answer to one question, and some cells of the suite's tuning part. Each
choice is run alone, beside the defaults of all other questions, and with each choice of another question. A pair loses
where its goodput is more than ``loss_fraction`` below that of the better of the two alone, and so does a choice alone
that is below the defaults. A pair that is warned of by name when a run starts has been said to lose.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
from pydantic import Field, model_validator

from loadtests.lab.suite.cells import Part, SuiteCell
from loadtests.lab.suite.differences import SHARE
from loadtests.lab.suite.suite_file import PolicySet, Suite, read_suite
from loadtests.results.comparison import compare
from loadtests.results.metrics import Better
from loadtests.scenario.scenario import POLICY
from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import PathBesideTheFile, Strict
from policies.errors import ConfigError
from routing.config.combinations import losing

FILE = Path(__file__).with_name("composition.yaml")
DEFAULTS = "defaults"
ALL_QUESTIONS = "all"
"""The question of a choice that answers several: it goes with each choice whose question it leaves alone."""


class Choice(Strict):
    """An answer to one question.

    Args:
        question: Which; two answers to one question are never together.
        leaves: Of a choice that answers several: the questions that it leaves to others.
        configuration: A deployment's configuration, relative to the suite's file.
        settings: Fields of a scenario, by path.
    """

    question: str
    leaves: tuple[str, ...] = ()
    configuration: PathBesideTheFile | None = Field(default=None, alias="from")
    settings: dict[str, Any] = Field(default_factory=dict)

    def goes_with(self, other: "Choice") -> bool:
        """Whether the two answer different questions."""
        for one, its in ((self, other), (other, self)):
            if one.question == ALL_QUESTIONS:
                return its.question in one.leaves
        return self.question != other.question


class Composition(Strict):
    """A composition's file.

    Args:
        version: Of the format.
        suite: The suite that has the cells, relative to the file.
        seeds: The same for all.
        cells: Their names, of the tuning part.
        loss_fraction: Goodput that a pair may be below the better one alone.
        choices: By name.
    """

    version: Literal[1]
    suite: PathBesideTheFile
    seeds: tuple[int, ...] = Field(min_length=1)
    cells: tuple[str, ...] = Field(min_length=1)
    loss_fraction: float = Field(ge=0, lt=1)
    choices: dict[str, Choice] = Field(min_length=2)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if strangers := [name for name in self.choices if name == DEFAULTS or "+" in name]:
            raise ConfigError("choices", strangers, f"names without +, other than {DEFAULTS}")
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Choices that are run together, and each with the defaults."""
        return [(DEFAULTS, name) for name in self.choices] + [
            (one, other)
            for one, other in itertools.combinations(self.choices, 2)
            if self.choices[one].goes_with(self.choices[other])
        ]

    def as_suite(self) -> Suite:
        """The suite with these choices and their pairs as its policies."""
        together = {self.name_of(pair): self._policies(pair) for pair in self.pairs}
        policies = {DEFAULTS: PolicySet(description="nothing but defaults"), **together}
        return read_suite(Path(self.suite)).model_copy(update={"seeds": self.seeds, "policies": policies})

    def name_of(self, pair: tuple[str, str]) -> str:
        """What a pair's policies are called; a choice with the defaults is the choice."""
        return pair[1] if pair[0] == DEFAULTS else " + ".join(pair)

    def cells_of(self, suite: Suite) -> list[SuiteCell]:
        """Its cells.

        Raises:
            ConfigError: One is not in the tuning part.
        """
        tuning = {cell.name: cell for cell, part in suite.parts().items() if part is Part.TUNING}
        if strangers := [name for name in self.cells if name not in tuning]:
            raise ConfigError("cells", strangers, "cells of the tuning part: run_suite --tuning --list names them")
        return [tuning[name] for name in self.cells]

    def _policies(self, pair: tuple[str, str]) -> PolicySet:
        choices = [self.choices[name] for name in pair if name != DEFAULTS]
        document: dict[str, Any] = {"description": self.name_of(pair), "settings": {}}
        for each in choices:
            document["settings"] |= each.settings
            document |= {"from": each.configuration} if each.configuration else {}
        return PolicySet.model_validate(document)


def warnings_of(suite: Suite, cell: SuiteCell, policies: str) -> tuple[str, ...]:
    """What a run of these policies on a cell is warned of when it starts."""
    return losing(suite.scenario(cell, policies).dispatcher_spec(POLICY))


def differences_of_pairs(found: pd.DataFrame, composition: Composition) -> pd.DataFrame:
    """Each pair's goodput less that of the better of the two alone.

    Args:
        found: Runs, as :meth:`loadtests.lab.suite.suite_runs.SuiteRuns.of` gives them.
        composition: What was run.

    Returns:
        ``cell``, ``one``, ``other``, ``goodput``, ``better`` (which of the two that is), ``difference``, ``low`` and
        ``high`` of its interval; the worst first.
    """
    return pd.DataFrame(_rows(found, composition)).sort_values("difference", kind="stable")


def _rows(found: pd.DataFrame, composition: Composition) -> Iterator[dict[str, Any]]:
    for cell, its in found.groupby("cell", sort=False):
        by_policy = {str(name): each.sort_values("seed")[SHARE].tolist() for name, each in its.groupby("policy")}
        means = {name: sum(values) / len(values) for name, values in by_policy.items()}
        for pair in composition.pairs:
            alone = pair if DEFAULTS not in pair else (DEFAULTS,)
            better = max(alone, key=lambda name: means[name])
            name = composition.name_of(pair)
            difference = compare(by_policy[name], by_policy[better], Better.HIGHER).difference
            yield {
                "cell": cell,
                "one": pair[0],
                "other": pair[1],
                "goodput": means[name],
                "better": better,
                "difference": difference.value,
                "low": difference.low,
                "high": difference.high,
            }


def read_composition(path: Path = FILE) -> Composition:
    """Reads a composition.

    Raises:
        ConfigError: Something in it is wrong.
    """
    return validate(Composition, read_yaml(path), path.parent)

"""Marks: what a policy has to show on the suite, written down before it is judged."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import Strict
from policies.errors import ConfigError

FILE = Path(__file__).with_name("marks.yaml")


class NoWorse(Strict):
    """How far a cell may be behind.

    Args:
        than: The least that the lower end of a cell's difference may be, in goodput.
        in_fraction_of_cells: Of all cells; the others may be further behind.
    """

    than: float = Field(le=0)
    in_fraction_of_cells: float = Field(gt=0, le=1)


class Gain(Strict):
    """What the policy has to be better in.

    Args:
        family: Of the suite; all of its cells count alike.
        at_least: The mean of its differences, in goodput. The lower end of its interval has to be above 0, too.
        against: The policies that are gained on.
    """

    family: str
    at_least: float = Field(gt=0)
    against: tuple[str, ...] = Field(min_length=1)


class Marks(Strict):
    """A file of marks.

    Args:
        version: Of the format.
        policy: Who is judged.
        against: The policies that it is held against, each by marks of its own.
        confidence: Of intervals with two ends.
        no_worse: How far most cells may be behind.
        never_below: The least that any cell's difference may be.
        gain: What it has to be better in.
        worst_shown: So many of the worst cells are printed.
    """

    version: Literal[1]
    policy: str
    against: tuple[str, ...] = Field(min_length=1)
    confidence: float = Field(gt=0.5, lt=1)
    no_worse: NoWorse
    never_below: float = Field(le=0)
    gain: Gain
    worst_shown: int = Field(ge=0)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if strangers := [each for each in self.gain.against if each not in self.against]:
            raise ConfigError("gain.against", strangers, f"some of {list(self.against)}")
        if self.policy in self.against:
            raise ConfigError("against", self.policy, "other policies than the one that is judged")
        return self

    def require_known(self, policies: Collection[str], families: Collection[str]) -> None:
        """Whether what is run can be judged by these marks.

        Raises:
            ConfigError: A policy or the family of the gain is not there.
        """
        for field, name in (("policy", self.policy), *(("against", each) for each in self.against)):
            if name not in policies:
                raise ConfigError(f"marks.{field}", name, f"a policy that is run: one of {list(policies)}")
        if self.gain.family not in families:
            raise ConfigError("marks.gain.family", self.gain.family, f"a family that is run: one of {list(families)}")


def read_marks(path: Path = FILE) -> Marks:
    """Reads marks.

    Raises:
        ConfigError: Something in the file is wrong.
    """
    return validate(Marks, read_yaml(path), path.parent)

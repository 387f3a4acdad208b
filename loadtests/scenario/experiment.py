"""What a scenario in virtual time and a study of a deployment have in common: who wants what, and what is measured."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from loadtests.results.checks import Check
from loadtests.results.metrics import ALL, Window
from loadtests.results.slo import ClassSlo
from loadtests.scenario.fields import Settings, with_fields
from loadtests.scenario.fleet_config import within
from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import Located, Strict
from loadtests.workloads.clients import Retries
from loadtests.workloads.config import AnyRetries, WorkloadConfig
from policies.errors import ConfigError

Seconds = Annotated[float, Field(ge=0, le=86_400)]
NOTHING_ELSE: Settings = MappingProxyType({})
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=40)]


class Experiment(Strict):
    """Users, for how long they come, and what their requests are held against.

    Args:
        version: Of the format.
        name: The file's name without its ending.
        description: The question that it answers.
        workload: What users want.
        duration_s: For how long they want it.
        warm_up_s: What is wanted before this time is not measured.
        drain_s: How long answers are waited for after ``duration_s``.
        clients: What clients do after a refusal or a failure.
        slos: The SLOs of each traffic class.
        windows: Parts of the run that checks look at, by name: what came before a fault, and after it.
    """

    version: Literal[1]
    name: Name
    description: str = Field(min_length=1)
    workload: WorkloadConfig
    duration_s: Seconds = Field(gt=0)
    warm_up_s: Seconds
    drain_s: Seconds = 3600.0
    clients: AnyRetries = Retries()
    slos: dict[str, Annotated[ClassSlo, Located()]]
    windows: dict[Name, Annotated[Window, Located()]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.check()
        return self

    def changed(self, **changes: Any) -> Self:
        """A copy with other values of some fields.

        Raises:
            ConfigError: They don't fit the rest.
        """
        copy = self.model_copy(update=changes)
        copy.check()
        return copy

    def check(self) -> None:
        """Whether the parts fit together.

        Raises:
            ConfigError: They don't; field, value and what is allowed.
        """
        self._check_times()
        self._check_classes()

    @classmethod
    def read(cls, path_or_name: str, library: Sequence[Path], settings: Settings = NOTHING_ELSE) -> Self:
        """Reads a file of its kind.

        Args:
            path_or_name: A file that ends in ``.yaml`` or ``.yml``, or the name of one of the library.
            library: Files that can be given by name.
            settings: Other values for some of its fields; see :mod:`loadtests.scenario.fields`.

        Raises:
            ConfigError: There is none, or something in it is wrong; names the file and the field.
        """
        known = {each.stem: each for each in library}
        is_path = path_or_name.endswith((".yaml", ".yml"))
        path = Path(path_or_name) if is_path else known.get(path_or_name)
        if path is None or not path.is_file():
            allowed = f"a .yaml file, or a name in the library: {', '.join(known) or 'none'}"
            raise ConfigError(cls.__name__.lower(), path_or_name, allowed)
        try:
            found = validate(cls, with_fields(read_yaml(path), settings) if settings else read_yaml(path), path.parent)
            if found.name != path.stem:
                raise ConfigError("name", found.name, f"the file's name, {path.stem!r}")
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.field}", error.value, error.allowed) from error
        return found

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of all traffic classes."""
        return self.workload.class_names

    @property
    def window(self) -> Window:
        """Which logical requests are measured."""
        return Window(from_s=self.warm_up_s, until_s=self.duration_s)

    @property
    def checks_of_one_run(self) -> tuple[Check, ...]:
        """What a single run is held against."""
        return ()

    @property
    def has_simulated_faults(self) -> bool:
        """Whether something goes wrong in virtual time that does not go wrong by itself on a deployment."""
        return False

    def _check_times(self) -> None:
        if self.warm_up_s >= self.duration_s:
            raise ConfigError("warm_up_s", self.warm_up_s, f"less than duration_s, which is {self.duration_s:g}")

    def _check_classes(self) -> None:
        with within("workload"):
            self.workload.build(self.duration_s)
        if ALL in self.class_names:
            raise ConfigError("workload.classes", ALL, f"another name: {ALL!r} stands for all classes together")
        if set(self.slos) != set(self.class_names):
            raise ConfigError("slos", sorted(self.slos), f"one for each traffic class: {list(self.class_names)}")


def check_seeds(seeds: tuple[int, ...]) -> None:
    """Raises ``ConfigError`` unless every seed stands there once."""
    if len(set(seeds)) != len(seeds):
        raise ConfigError("seeds", list(seeds), "every seed once")

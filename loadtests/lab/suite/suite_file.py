"""The suite's file: families of users crossed with axes, and the policies that are compared on them.

``python -m loadtests.lab.run_suite`` runs it.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from loadtests.lab.capacity import simulated_capacity_rps
from loadtests.lab.suite.cells import FAMILY, PART, Part, SuiteCell, Value, in_order_of_hash
from loadtests.lab.suite.trace_windows import TraceWindows
from loadtests.scenario.fields import with_fields
from loadtests.scenario.scenario import Scenario
from loadtests.schema.files import read_yaml, validate
from loadtests.schema.reading import PathBesideTheFile, Strict
from policies.errors import ConfigError

FILE = Path(__file__).with_name("suite.yaml")


class Axes(Strict):
    """What every family is crossed with.

    Args:
        cv: How bursty arrivals are, as the coefficient of variation of independent gaps; of families that say where it
            goes.
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
        burstiness: Paths that get the cell's ``cv``; a family without any has no such axis.
        profile: Engines' profiles, each with fields that differ with it: one more axis, where they are given.
        load: In place of the common loads.
        trace: Windows of a recorded trace: one more axis, where it is given.
    """

    description: str
    settings: dict[str, Any] = Field(default_factory=dict)
    burstiness: tuple[str, ...] = ()
    profile: dict[str, dict[str, Any]] = Field(default_factory=dict)
    load: tuple[float, ...] = ()
    trace: TraceWindows | None = None

    def axes(self, common: Axes) -> dict[str, tuple[Value, ...]]:
        """Its axes, each with its values.

        Args:
            common: Those of every family.
        """
        axes: dict[str, tuple[Value, ...]] = {"window": self.trace.windows} if self.trace else {}
        axes |= {name: values for name, values in common if name != "cv" or self.burstiness}
        axes |= {"load": self.load} if self.load else {}
        return axes | ({"profile": tuple(self.profile)} if self.profile else {})


class PolicySet(Strict):
    """What is compared.

    Args:
        description: What it is.
        shares: Names of settings that it has in common with others.
        configuration: A deployment's configuration, relative to the suite's file: its policies and prefill window.
        settings: Fields of the base scenario, by path; set last.
    """

    description: str
    shares: tuple[str, ...] = ()
    configuration: PathBesideTheFile | None = Field(default=None, alias="from")
    settings: dict[str, Any] = Field(default_factory=dict)


class Suite(Strict):
    """A suite's file.

    Args:
        version: Of the format.
        edition: Part of what decides which cells are for judging; another one after a choice was judged.
        seeds: The same for every policy.
        judging_cells: Of each family: those that come first in the order of their hashes, on a half of its trace's
            windows where it has one. The others are for tuning.
        base: The scenario that all others are made from.
        axes: What every family is crossed with.
        families: By name.
        shared: Settings that several policies have in common, by name.
        policies: By name.
    """

    version: Literal[2]
    edition: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    judging_cells: int = Field(ge=1)
    base: dict[str, Any]
    axes: Axes
    families: dict[str, Family] = Field(min_length=1)
    shared: dict[str, dict[str, Any]] = Field(default_factory=dict)
    policies: dict[str, PolicySet] = Field(min_length=1)

    @model_validator(mode="after")
    def _shares_what_there_is(self) -> Self:
        for name, policy in self.policies.items():
            if strangers := set(policy.shares) - self.shared.keys():
                raise ConfigError(f"policies.{name}.shares", sorted(strangers), f"some of {list(self.shared)}")
        return self

    def cells(self) -> Iterator[SuiteCell]:
        """All of them, family by family."""
        for name, family in self.families.items():
            axes = family.axes(self.axes)
            for point in itertools.product(*axes.values()):
                yield SuiteCell(name, tuple(zip(axes, point, strict=True)))

    def parts(self) -> dict[SuiteCell, Part]:
        """Which part each cell is in: that depends on the edition and the names of its family's cells alone.

        A window of a trace is for tuning or for judging as a whole; cells on windows for judging that are too many are
        in neither part.
        """
        parts: dict[SuiteCell, Part] = {}
        for name, family in self.families.items():
            cells = [cell for cell in self.cells() if cell.family == name]
            for_judging = self._judging_windows(name)
            may_judge = [cell for cell in cells if family.trace is None or cell.values["window"] in for_judging]
            judging = set(self.first_of_each_family(may_judge, self.judging_cells))
            for cell in cells:
                if cell in judging:
                    parts[cell] = Part.JUDGING
                elif cell.values.get("window") not in for_judging:
                    parts[cell] = Part.TUNING
        return parts

    def _judging_windows(self, family: str) -> set[Value]:
        trace = self.families[family].trace
        if trace is None:
            return set()
        windows = [SuiteCell(family, (("window", each),)) for each in trace.windows if each not in trace.seen]
        return {each.values["window"] for each in in_order_of_hash(windows, self.edition)[: len(trace.windows) // 2]}

    def first_of_each_family(self, cells: Sequence[SuiteCell], most: int) -> list[SuiteCell]:
        """At most so many cells of each family, by the order of their hashes; in the order in which they were given."""
        families = {cell.family for cell in cells}
        chosen: set[SuiteCell] = set()
        for family in families:
            chosen.update(in_order_of_hash((cell for cell in cells if cell.family == family), self.edition)[:most])
        return [cell for cell in cells if cell in chosen]

    def axes_of_cells(self) -> dict[str, list[Value]]:
        """Everything that cells can be chosen by, each with all its values; family and part among them."""
        known: dict[str, list[Value]] = {FAMILY: list(self.families), PART: [each.value for each in Part]}
        for cell in self.cells():
            for axis, value in cell.at:
                if value not in known.setdefault(axis, []):
                    known[axis].append(value)
        return known

    def scenario(
        self, cell: SuiteCell, policy: str, traces: Path | None = None, kept_in: Path | None = None
    ) -> Scenario:
        """A cell with a policy, at a load that is a share of what the cell's own fleet can do, not the policy's.

        Args:
            cell: The cell.
            policy: By name.
            traces: The folder of recorded traces.
            kept_in: Where capacities are kept.

        Raises:
            ConfigError: They can't be together, or the cell's trace is not there.
        """
        family, load = self.families[cell.family], float(cell.values["load"])
        try:
            document = self._document(cell, traces)
            read = validate(Scenario, self._with_policy(document, policy), FILE.parent)
            capacity_rps = simulated_capacity_rps(validate(Scenario, document, FILE.parent), kept_in)
            if family.trace is not None:
                return family.trace.replayed(read, load * capacity_rps)
            factor = load * (capacity_rps / read.workload.requests_per_s(read.duration_s))
            return read.changed(workload=read.workload.scaled(factor))
        except ConfigError as error:
            raise ConfigError(f"{cell.name}, {policy}: {error.field}", error.value, error.allowed) from error

    def _document(self, cell: SuiteCell, traces: Path | None) -> dict[str, Any]:
        """A cell as a scenario file would write it, but for its load."""
        family, at = self.families[cell.family], cell.values
        settings = {
            **family.settings,
            **dict.fromkeys(family.burstiness, at.get("cv")),
            **({"profile": at["profile"], **family.profile[str(at["profile"])]} if "profile" in at else {}),
            "fleet.num_gateways": at["gateways"],
            "clients": {"max_requests": 1} if at["max_requests"] == 1 else "openai",
        }
        if family.trace is not None:
            settings |= family.trace.fields(cell.family, int(at["window"]), traces)
        return with_fields(self.base, settings)

    def _with_policy(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        policy = self.policies[name]
        for shared in policy.shares:
            document = with_fields(document, self.shared[shared])
        if policy.configuration is not None:
            document = with_fields(document, _of_deployment(Path(policy.configuration), document["policies"]["slos"]))
        return with_fields(document, policy.settings)


def _of_deployment(path: Path, slos: object) -> dict[str, Any]:
    """What a deployment's configuration says of policies and of the window, as fields of a scenario with these SLOs."""
    try:
        its = read_yaml(path)["applications"][0]["args"]
        window_tokens = its.get("gateway", {}).get("prefill_window_tokens", 0)
        return {"policies": its["policies"] | {"slos": slos}, "dispatcher.prefill_window_tokens": window_tokens}
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError("from", str(path), "a deployment's configuration with policies") from error


def read_suite(path: Path = FILE) -> Suite:
    """Reads a suite.

    Raises:
        ConfigError: Something in it is wrong.
    """
    return validate(Suite, read_yaml(path), path.parent)

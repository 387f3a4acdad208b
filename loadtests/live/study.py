"""A study: one question, asked of variants of a deployment under loads, with the answer that the file expects.

Study files are YAML, version 1, in the words of a scenario where they say the same.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from engines.model.profile import load_profile
from loadtests.live.actions import Action
from loadtests.live.configuration import check_policies, laid_over, read_config
from loadtests.live.study_parts import SIMULATED, DeploymentConfig, Flood, Simulated, StudyCheck, Usual, Variant
from loadtests.results.checks import Check
from loadtests.results.metrics import ALL, METRICS, Window
from loadtests.scenario.experiment import Experiment, check_seeds
from loadtests.scenario.fleet_config import within
from loadtests.schema.ranges import require
from loadtests.schema.reading import Located, OneOf
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.config import WorkloadConfig
from policies.errors import ConfigError

LIBRARY = Path(__file__).resolve().parents[1] / "studies"
"""Where studies are found by name."""
Load = Annotated[float, Field(gt=0, le=20)]
VariantName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[^/@]+$")]


class Study(Experiment):
    """A study file.

    Args:
        deployment: What serves.
        variants: What is compared, by name; each is started once, in this order.
        capacity: Requests a second that loads are shares of: a number, or a flood that finds it.
        loads: One run for each, with the workload's rates multiplied so that so many capacities come.
        simulated: Every run is made in virtual time, too, with the hop of the deployment.
        usual: What comes before the load.
        seeds: One run for each: plans that differ in nothing else.
        actions: What is done to the deployment in every run.
        most_foreign_fraction: Of the machine, taken by others: a run with more of it is invalid.
        shown: Metrics in the table, by traffic class, or ``all``.
        checks: What has to hold.
    """

    deployment: DeploymentConfig
    variants: dict[VariantName, Variant] = Field(min_length=1)
    capacity: Annotated[float | Flood, OneOf({"requests_per_s": Annotated[float, Field(gt=0)], "flood": Flood})]
    simulated: Simulated | None = None
    loads: tuple[Load, ...] = Field(default=(1.0,), min_length=1)
    usual: Annotated[Usual, Located()] | None = None
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(1,), min_length=1)
    actions: tuple[Action, ...] = ()
    most_foreign_fraction: float = Field(default=1.0, gt=0, le=1)
    shown: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    checks: tuple[StudyCheck, ...] = ()

    def check(self) -> None:
        """Whether the parts fit together.

        Raises:
            ConfigError: They don't; field, value and what is allowed.
        """
        super().check()
        check_seeds(self.seeds)
        self._check_simulated()
        self._check_variants()
        flooded = self.capacity.variant if isinstance(self.capacity, Flood) else None
        if flooded is not None and flooded not in self.variants:
            raise ConfigError("capacity.flood.variant", flooded, f"one of {list(self.variants)}")
        if self.usual is not None and self.usual.for_s >= self.duration_s:
            raise ConfigError("usual.for_s", self.usual.for_s, f"less than duration_s, which is {self.duration_s:g}")
        self._check_shown()
        self._check_checks()

    def _check_simulated(self) -> None:
        if self.simulated is None:
            return
        with within("simulated"):
            load_profile(self.simulated.profile)
        if self.actions:
            raise ConfigError("actions", len(self.actions), "none in a study that is simulated: nothing happens there")

    def _check_variants(self) -> None:
        profile = self.simulated.profile if self.simulated is not None else None
        self._check_rates("workload", self.workload)
        for name, variant in self.variants.items():
            if name.endswith(SIMULATED):
                raise ConfigError("variants", name, f"a name that does not end with {SIMULATED!r}")
            with within(f"variants.{name}"):
                document = self.document(name)
                check_policies(document, profile)
                if variant.workload is not None:
                    self._check_rates("workload", variant.workload)
                if variant.requests_per_s is not None and isinstance(self.capacity, Flood):
                    raise ConfigError(
                        "requests_per_s", variant.requests_per_s, "nothing where a flood finds the capacity"
                    )
            self._check_actions(name, document["applications"][0]["args"])

    def _check_rates(self, place: str, workload: WorkloadConfig) -> None:
        with within(place):
            workload.build(self.duration_s)
        if workload.traces:
            allowed = "none: rates are shares of the load, and a trace has its own"
            raise ConfigError(f"{place}.traces", [each.name for each in workload.traces], allowed)
        if self.usual is not None and not all(isinstance(each.arrivals, Poisson) for each in workload.classes):
            allowed = "traffic classes with poisson arrivals, because the load follows what is usual"
            raise ConfigError(f"{place}.classes", list(workload.class_names), allowed)

    def _check_actions(self, variant: str, args: dict[str, Any]) -> None:
        for index, action in enumerate(self.actions):
            if strangers := sorted(set(action.variants) - set(self.variants)):
                raise ConfigError(f"actions.{index}.variants", strangers, f"of {list(self.variants)}")
            with within(f"actions.{index}"):
                action.check(args if variant in (action.variants or (variant,)) else None, self.duration_s)

    def _check_shown(self) -> None:
        for group, metrics in self.shown.items():
            for metric in metrics:
                Check.model_validate({"metric": metric, "class": group, "at_least": 0}).ensure_judgeable(
                    f"shown.{group}", self.class_names, []
                )

    def _check_checks(self) -> None:
        for index, check in enumerate(self.checks):
            if check.simulated and (self.simulated is None or check.against is not None):
                allowed = "true only in a study that is simulated, and without 'against'"
                raise ConfigError(f"checks.{index}.simulated", True, allowed)
            for each in self._single(check):
                self._check_check(f"checks.{index}", each)

    def _check_check(self, place: str, check: StudyCheck) -> None:
        names = self.names_of_runs
        if check.variant is not None and check.variant not in names:
            raise ConfigError(f"{place}.variant", check.variant, f"one of {list(names)}")
        sides = [each for each in (check.variant, check.against) if each in names]
        classes = [each for each in self.class_names if all(each in self.classes_of(side) for side in sides)]
        check.ensure_judgeable(place, classes, names, list(self.windows))
        if check.variant is not None and check.variant == check.against:
            raise ConfigError(f"{place}.against", check.against, "another variant")
        if METRICS[check.metric].is_live and any(each not in self.variants for each in sides):
            raise ConfigError(f"{place}.metric", check.metric, "a metric that the simulator has")

    @property
    def single_checks(self) -> tuple[StudyCheck, ...]:
        """The checks; one that compares each variant with its runs in virtual time is one for each variant."""
        return tuple(each for check in self.checks for each in self._single(check))

    def _single(self, check: StudyCheck) -> list[StudyCheck]:
        if not check.simulated:
            return [check]
        having = [each for each in self.variants if check.traffic_class in (ALL, *self.classes_of(each))]
        return [check.of_counterpart(each) for each in ([check.variant] if check.variant else having or self.variants)]

    @property
    def names_of_runs(self) -> tuple[str, ...]:
        """What runs are called after: each variant, and its runs in virtual time where there are any."""
        endings = ("",) if self.simulated is None else ("", SIMULATED)
        return tuple(f"{name}{ending}" for name in self.variants for ending in endings)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of all variants' traffic classes."""
        workloads = [variant.workload or self.workload for variant in self.variants.values()]
        return tuple(dict.fromkeys(name for each in workloads for name in each.class_names))

    def workload_of(self, name: str) -> WorkloadConfig:
        """What users want in the runs of that name."""
        return self.variants[name.removesuffix(SIMULATED)].workload or self.workload

    def classes_of(self, name: str) -> tuple[str, ...]:
        """The traffic classes in the runs of that name."""
        return self.workload_of(name).class_names

    def document(self, variant: str) -> dict[str, Any]:
        """The configuration of a variant.

        Raises:
            ConfigError: There is no such file.
        """
        document = read_config(self.deployment.config)
        application = document["applications"][0]
        for patch in (self.deployment.args, self.variants[variant].args):
            application["args"] = laid_over(application["args"], patch)
        if (location := self.variants[variant].proxy_location) is not None:
            document["proxy_location"] = location
        return document

    @property
    def table_metrics(self) -> Mapping[str, Sequence[str]]:
        """What the table shows: what the file says, or else what is checked."""
        if self.shown:
            return self.shown
        found: dict[str, list[str]] = {ALL: ["offered_requests", "goodput_fraction", "ttft_p50_s", "ttft_p99_s"]}
        for check in self.checks:
            of_class = found.setdefault(check.traffic_class, [])
            if check.metric not in of_class:
                of_class.append(check.metric)
        return found

    def measured_for(self, seconds: float) -> "Study":
        """The same with another time after the warm-up; windows and actions move along.

        Raises:
            ConfigError: It is too short.
        """
        require(0 < seconds <= 3600, "--seconds", seconds, "above 0, at most 3600")
        factor = seconds / (self.duration_s - self.warm_up_s)

        def moved(at_s: float) -> float:
            return at_s if at_s <= self.warm_up_s else self.warm_up_s + factor * (at_s - self.warm_up_s)

        windows = {
            name: Window(from_s=moved(each.from_s), until_s=moved(each.until_s)) for name, each in self.windows.items()
        }
        actions = tuple(each.model_copy(update={"at_s": moved(each.at_s)}) for each in self.actions)
        return self.changed(duration_s=self.warm_up_s + seconds, windows=windows, actions=actions)


def library() -> list[Path]:
    """Files of the studies that can be given by name."""
    return sorted(LIBRARY.glob("*.yaml"))


def load(path_or_name: str) -> Study:
    """Reads a study: a file that ends in ``.yaml``, or the name of one in ``loadtests/studies``.

    Raises:
        ConfigError: There is none, or something in it is wrong; names the file and the field.
    """
    return Study.read(path_or_name, library())

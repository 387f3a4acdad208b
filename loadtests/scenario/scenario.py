"""A scenario: one question, asked of a fleet under a workload, with the answer that the files expect.

Scenario files are YAML, version 1. A file holds everything that decides a run but the seed.
"""

from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from cluster.config.policies import PoliciesConfig
from cluster.config.renamed import modernised
from cluster.config.terms import TermsConfig
from cluster.seeds import Seeds
from cluster.sim.faults import CoordinatorOutage, Fault
from cluster.sim.simulator import provided
from cluster.sim.topology import FleetSpec
from engines.model.profile import load_profile
from loadtests.results.checks import Check
from loadtests.results.metrics import METRICS
from loadtests.scenario.episodes import Episodes
from loadtests.scenario.experiment import NOTHING_ELSE, Experiment, Name, check_seeds
from loadtests.scenario.fields import Settings
from loadtests.scenario.fleet_config import DispatcherConfig, FleetConfig, within
from loadtests.scenario.policy_settings import Baseline
from loadtests.schema.reading import Located, ReadAs, beside_the_file
from policies.errors import ConfigError
from routing.assembly import build_dispatcher
from routing.config.spec import DispatcherParams, DispatcherSpec

LIBRARY = Path(__file__).resolve().parents[1] / "scenarios"
"""Where scenarios are found by name."""
POLICY = "policy"
"""Names what is compared with the baselines."""


def _beside_the_file(value: str, info: ValidationInfo) -> str:
    return beside_the_file(value, info) if value.endswith((".yaml", ".yml")) else value


ProfileName = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)]


class Scenario(Experiment):
    """A scenario file.

    Args:
        profile: The engines' profile, by name or path.
        fleet: What serves.
        dispatcher: Limits of each dispatcher.
        policies: What is tried.
        baselines: What it is compared with, by the baseline's name: changes to ``policies``, and the pools if they
            are others.
        tenants: What the tenants are entitled to whom the workload's classes name.
        faults: What goes wrong.
        load_coordinator_outages: When there is no load coordinator; the one that follows knows nothing.
        episodes: What goes wrong again and again, at times that depend on the seed alone.
        seeds: The same for the policy and every baseline.
        checks: What has to hold.
        is_long: Whether it takes minutes, so that it is run only where somebody names it.
    """

    profile: ProfileName
    fleet: FleetConfig
    dispatcher: Annotated[DispatcherParams, ReadAs(DispatcherConfig)] = DispatcherParams()
    policies: PoliciesConfig
    baselines: dict[Name, Baseline] = Field(default_factory=dict)
    tenants: dict[str, TermsConfig] = Field(default_factory=dict)
    faults: tuple[Annotated[Fault, Located()], ...] = ()
    load_coordinator_outages: tuple[Annotated[CoordinatorOutage, Located()], ...] = ()
    episodes: tuple[Annotated[Episodes, Located()], ...] = ()
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(1, 2, 3, 4, 5), min_length=1)
    checks: tuple[Check, ...] = ()
    is_long: bool = False

    @property
    def checks_of_one_run(self) -> tuple[Check, ...]:
        return self.checks

    @property
    def has_simulated_faults(self) -> bool:
        return bool(self.faults or self.episodes or self.load_coordinator_outages)

    @property
    def variants(self) -> dict[str, PoliciesConfig]:
        """What is run: the policies under ``POLICY``, and every baseline."""
        baselines = {name: changes.applied_to(self.policies) for name, changes in self.baselines.items()}
        return {POLICY: self.policies, **baselines}

    def alone(self, variant: str) -> "Scenario":
        """A variant with nothing to compare it with, and without checks."""
        return self.changed(
            fleet=self._fleet_of(variant),
            dispatcher=self._limits_of(variant),
            policies=self.variants[variant],
            baselines={},
            checks=(),
        )

    def fleet_spec(self, variant: str = POLICY) -> FleetSpec:
        """A variant's fleet as the simulator takes it."""
        return self._fleet_of(variant).build(load_profile(self.profile))

    def _fleet_of(self, variant: str) -> FleetConfig:
        baseline = self.baselines.get(variant, Baseline())
        changes = {name: getattr(baseline, name) for name in ("pools", "num_gateways", "kv_events")}
        return self.fleet.model_copy(update={name: value for name, value in changes.items() if value is not None})

    def _limits_of(self, variant: str) -> DispatcherParams:
        baseline = self.baselines.get(variant, Baseline())
        changes = {name: getattr(baseline, name) for name in ("prefill_window_tokens", "leader_first")}
        return replace(self.dispatcher, **{name: value for name, value in changes.items() if value is not None})

    def dispatcher_spec(self, variant: str) -> DispatcherSpec:
        """A variant's dispatchers as the simulator takes them."""
        fleet = self.fleet_spec(variant)
        return self.variants[variant].dispatcher_spec(
            fleet.roles_by_pool,
            fleet.rates,
            self._limits_of(variant),
            fleet.whole_request_pools,
            tenants={name: each.terms() for name, each in self.tenants.items()},
            num_gateways=fleet.num_gateways,
            has_load_coordinator=True,
            kv_lease_s=fleet.kv_lease_s,
        )

    @model_validator(mode="before")
    @classmethod
    def _reads_old_names(cls, document: Any) -> Any:
        return modernised(document)

    def check(self) -> None:
        """Whether the parts fit together.

        Raises:
            ConfigError: They don't; field, value and what is allowed.
        """
        super().check()
        check_seeds(self.seeds)
        self._check_fleets()
        if strangers := sorted(self.tenants.keys() - self.workload.tenants):
            raise ConfigError("tenants", strangers, f"tenants of the workload: {sorted(self.workload.tenants)}")
        self._check_variants()
        self._check_faults()
        for index, check in enumerate(self.checks):
            check.ensure_judgeable(
                f"checks.{index}", self.workload.class_names, list(self.baselines), list(self.windows)
            )
            if METRICS[check.metric].is_live:
                raise ConfigError(f"checks.{index}.metric", check.metric, "a metric that the simulator has")

    def _check_fleets(self) -> None:
        self.fleet_spec()
        num_replicas = self.fleet.num_replicas
        for name in self.baselines:
            with within(f"baselines.{name}"):
                self.fleet_spec(name)
            if self._fleet_of(name).num_replicas != num_replicas:
                allowed = f"{num_replicas} replicas in all, as the scenario's own fleet has"
                raise ConfigError(f"baselines.{name}.pools", self._fleet_of(name).num_replicas, allowed)

    def _check_variants(self) -> None:
        if POLICY in self.baselines:
            raise ConfigError("baselines", POLICY, "another name: that one stands for what is compared")
        for name, changes in self.baselines.items():
            if changes == Baseline():
                raise ConfigError(f"baselines.{name}", {}, "at least one policy that differs, or other pools")
        for variant in self.variants:
            with within(f"baselines.{variant}") if variant != POLICY else nullcontext():
                has = provided(self.fleet_spec(variant))
                build_dispatcher(self.dispatcher_spec(variant), rng_for=Seeds(0).stream, provided=has)

    def _check_faults(self) -> None:
        for variant in self.variants:
            with within(f"baselines.{variant}") if variant != POLICY else nullcontext():
                self._check_faults_on(self._fleet_of(variant))
                self._check_episodes_on(self._fleet_of(variant))

    def all_faults(self, variant: str, seed: int) -> tuple[Fault, ...]:
        """What goes wrong in a run of a variant."""
        replicas, seeds = self._fleet_of(variant).replicas_by_role, Seeds(seed)
        again = (each.faults(replicas[each.role], self.duration_s, seeds) for each in self.episodes)
        return (*self.faults, *chain.from_iterable(again))

    def _check_episodes_on(self, fleet: FleetConfig) -> None:
        replicas = fleet.replicas_by_role
        for index, each in enumerate(self.episodes):
            if each.role not in replicas:
                raise ConfigError(f"episodes.{index}.role", str(each.role), f"one of {sorted(map(str, replicas))}")
            others: tuple[Fault | Episodes, ...] = (*self.faults, *self.episodes[:index])
            if any((other.kind, other.role) == (each.kind, each.role) for other in others):
                allowed = "a kind that nothing else in the scenario does to the replicas of this role"
                raise ConfigError(f"episodes.{index}.kind", each.kind.value, allowed)

    def _check_faults_on(self, fleet: FleetConfig) -> None:
        replicas = fleet.replicas_by_role
        for index, fault in enumerate(self.faults):
            if fault.role not in replicas:
                raise ConfigError(f"faults.{index}.role", str(fault.role), f"one of {sorted(map(str, replicas))}")
            if not 0 <= fault.replica < replicas[fault.role]:
                allowed = f"0 to {replicas[fault.role] - 1}, the index of a {fault.role} replica"
                raise ConfigError(f"faults.{index}.replica", fault.replica, allowed)
            if not 0 <= fault.at_s < self.duration_s:
                allowed = f"at least 0 and less than duration_s, which is {self.duration_s:g}"
                raise ConfigError(f"faults.{index}.at_s", fault.at_s, allowed)
            for earlier in self.faults[:index]:
                if _overlap(fault, earlier):
                    allowed = "one fault of a kind on a replica at a time"
                    raise ConfigError(f"faults.{index}.at_s", fault.at_s, allowed)


def _overlap(one: Fault, other: Fault) -> bool:
    is_same = (one.kind, one.role, one.replica) == (other.kind, other.role, other.replica)
    return is_same and one.at_s < other.at_s + other.for_s and other.at_s < one.at_s + one.for_s


def library() -> list[Path]:
    """Files of the scenarios that can be given by name."""
    return sorted(LIBRARY.glob("*.yaml"))


def load(path_or_name: str, settings: Settings = NOTHING_ELSE) -> Scenario:
    """Reads a scenario: a file that ends in ``.yaml``, or the name of one in ``loadtests/scenarios``.

    Raises:
        ConfigError: There is none, or something in it is wrong; names the file and the field.
    """
    return Scenario.read(path_or_name, library(), settings)

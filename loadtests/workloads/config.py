"""Workloads as a scenario file writes them: fields of :mod:`loadtests.workloads.workload`'s dataclasses, kinds by name.

Lengths have two short forms: a number is always that number of tokens, and a word is one of the measured tables.
"""

from math import inf
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from loadtests.schema.reading import ForDataclass, Located, OneOf, PathBesideTheFile, ReadAs, Strict
from loadtests.workloads.agents import Agents
from loadtests.workloads.arrivals import ArrivalProcess, Diurnal, FlashCrowd, Gamma, Hawkes, Mmpp, OnOff, Poisson, Ramp
from loadtests.workloads.clients import OFFICIAL_CLIENTS, Retries
from loadtests.workloads.lengths import (
    EMPIRICAL,
    Constant,
    Empirical,
    Exponential,
    Lengths,
    Limit,
    LogNormal,
    Pareto,
    Uniform,
)
from loadtests.workloads.mixtures import Mixture, Part
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.traces import Trace
from loadtests.workloads.turns import (
    ConstantThink,
    ConstantTurns,
    ExponentialThink,
    GeometricTurns,
    LogNormalThink,
    ThinkTime,
    Turns,
)
from loadtests.workloads.workload import Adapters, TrafficClass, Workload
from policies.errors import ConfigError
from policies.views import Priority


def _table(name: str) -> Empirical:
    if name not in EMPIRICAL:
        raise ConfigError("", name, f"one of {sorted(EMPIRICAL)}")
    return EMPIRICAL[name]


def _short_form(value: object) -> object:
    if value == "exact":
        return {"exact": value}
    if isinstance(value, str):
        return {"table": value}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"constant": {"num_tokens": value}} if is_number else value


AnyArrivals = Annotated[
    ArrivalProcess,
    OneOf(
        {
            "poisson": Poisson,
            "gamma": Gamma,
            "hawkes": Hawkes,
            "mmpp": Mmpp,
            "on_off": OnOff,
            "ramp": Ramp,
            "flash_crowd": FlashCrowd,
            "diurnal": Diurnal,
        }
    ),
]
"""An arrival process."""

_ONE_PART = {
    "constant": Constant,
    "uniform": Uniform,
    "log_normal": LogNormal,
    "exponential": Exponential,
    "pareto": Pareto,
    "empirical": Empirical,
    "table": Annotated[str, AfterValidator(_table)],
}


class PartConfig(ForDataclass):
    """One part of a mixture, itself no mixture; the fields of :class:`loadtests.workloads.mixtures.Part`."""

    target = Part

    weight: float
    tokens: Annotated[Lengths, OneOf(_ONE_PART), BeforeValidator(_short_form)]


class MixtureConfig(ForDataclass):
    """The fields of :class:`loadtests.workloads.mixtures.Mixture`."""

    target = Mixture

    parts: tuple[Annotated[Part, ReadAs(PartConfig)], ...]


_LENGTHS = {**_ONE_PART, "mixture": Annotated[Mixture, ReadAs(MixtureConfig)]}

AnyLengths = Annotated[Lengths, OneOf(_LENGTHS), BeforeValidator(_short_form)]
"""A distribution of token lengths."""

AnyLimit = Annotated[Limit, OneOf({"exact": Literal["exact"], **_LENGTHS}), BeforeValidator(_short_form)]
"""What clients allow an answer: ``exact``, or lengths."""

AnyTurns = Annotated[Turns, OneOf({"constant": ConstantTurns, "geometric": GeometricTurns})]
"""A distribution of the number of turns."""

AnyThinkTime = Annotated[
    ThinkTime, OneOf({"constant": ConstantThink, "exponential": ExponentialThink, "log_normal": LogNormalThink})
]
"""A distribution of think times."""


def _official(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in OFFICIAL_CLIENTS:
        raise ConfigError("", value, f"one of {sorted(OFFICIAL_CLIENTS)}, or fields of their own")
    return OFFICIAL_CLIENTS[value]


AnyRetries = Annotated[Retries, BeforeValidator(_official), Located()]
"""What clients do after a refusal or a failure: a client that others have written, by name, or fields."""


class SessionsConfig(ForDataclass):
    """How the users of a class hold conversations; the fields of :class:`loadtests.workloads.sessions.Sessions`."""

    target = Sessions

    turns: AnyTurns
    think: AnyThinkTime
    system_prompt_tokens: int = 0
    content_unit_tokens: int = 64
    max_context_tokens: int | None = None


class AgentsConfig(ForDataclass):
    """How the agents of a class work on their tasks; the fields of :class:`loadtests.workloads.agents.Agents`."""

    target = Agents

    steps: AnyTurns
    calls: AnyTurns
    tools: AnyThinkTime
    system_prompt_tokens: int = 0
    content_unit_tokens: int = 64
    max_context_tokens: int | None = None


class TrafficClassConfig(ForDataclass):
    """Users of one kind; the fields of :class:`loadtests.workloads.workload.TrafficClass`."""

    target = TrafficClass

    name: str
    arrivals: AnyArrivals
    prompt_tokens: AnyLengths
    output_tokens: AnyLengths
    timeout_s: float
    max_output_tokens: AnyLimit = "exact"
    sessions: Annotated[Sessions, ReadAs(SessionsConfig)] | None = None
    agents: Annotated[Agents, ReadAs(AgentsConfig)] | None = None
    from_s: float = 0.0
    for_s: float = inf
    priority: Priority = Priority.STANDARD
    tenant: str = ""
    length_correlation: float = 0.0
    adapters: Annotated[Adapters, Located()] | None = None
    kills_for_s: float = Field(default=0.0, ge=0, le=86_400)
    choices: int = Field(default=1, ge=1, le=1_024)


class TraceConfig(ForDataclass):
    """A recorded trace: a :class:`loadtests.workloads.traces.Trace`, its path relative to the scenario file."""

    target = Trace

    name: str
    path: PathBesideTheFile
    trace_schema: str = Field(alias="schema")
    timeout_s: float
    sha256: str | None = None
    speed: float = 1.0
    rate_per_s: float | None = None
    rows_from_s: float = 0.0
    rows_until_s: float = inf
    max_output_tokens: AnyLimit = "exact"
    max_context_tokens: int | None = None
    from_s: float = 0.0
    for_s: float = inf
    priority: Priority = Priority.STANDARD
    tenant: str = ""


class WorkloadConfig(Strict):
    """Everything that users want: traffic classes, recorded traces, or both side by side.

    Args:
        classes: Traffic classes.
        traces: Each is a traffic class, too; their indices follow those of ``classes``.
    """

    classes: tuple[Annotated[TrafficClass, ReadAs(TrafficClassConfig)], ...] = ()
    traces: tuple[Annotated[Trace, ReadAs(TraceConfig)], ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the traffic classes in the order of their indices."""
        return (*(each.name for each in self.classes), *(each.name for each in self.traces))

    @property
    def tenants(self) -> frozenset[str]:
        """Who pays for them."""
        return frozenset((*(each.tenant for each in self.classes), *(each.tenant for each in self.traces)))

    def scaled(self, factor: float) -> Self:
        """The same users, ``factor`` times as many a second."""
        classes, traces = (tuple(each.scaled(factor) for each in group) for group in (self.classes, self.traces))
        return self.model_copy(update={"classes": classes, "traces": traces})

    def steady(self, until_s: float) -> Self:
        """The same users at the rates that are expected of them until then, without bursts, days and crowds."""
        return self.model_copy(update={"classes": tuple(each.steady(until_s) for each in self.classes)})

    def requests_per_s(self, until_s: float) -> float:
        """Logical requests per second that are expected until then."""
        return sum(each.requests_per_s(until_s) for each in self.build(until_s).classes)

    def build(self, duration_s: float) -> Workload:
        """The same as the generator takes it.

        Raises:
            ConfigError: There is no class, or two have the same name.
        """
        return Workload(classes=(*self.classes, *self.traces), duration_s=duration_s)

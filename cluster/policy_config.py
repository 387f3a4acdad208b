"""How policies are named in a YAML file, the same in a deployment and in a simulated scenario."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from policies.catalog import PolicyChoice, PolicySpec


class PolicyConfig(BaseModel):
    """One policy: its catalog name or import path, and its parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    params: dict[str, Any] = Field(default_factory=dict)

    def choice(self) -> PolicyChoice:
        """The same as :mod:`policies` takes it."""
        return PolicyChoice(name=self.name, params=self.params)


def _name_alone(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


NamedPolicy = Annotated[PolicyConfig, BeforeValidator(_name_alone)]
"""A policy in a file; a plain string is short for ``{name: ...}``."""


class PoliciesConfig(BaseModel):
    """A policy for every question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    planning: str
    admission: NamedPolicy = PolicyConfig(name="always_admit")
    shedding: NamedPolicy = PolicyConfig(name="never_shed")
    hedging: NamedPolicy = PolicyConfig(name="no_hedge")
    queueing: NamedPolicy = PolicyConfig(name="fcfs")
    balancing: NamedPolicy = PolicyConfig(name="least_work_left")

    def spec(self) -> PolicySpec:
        """The same as :func:`policies.catalog.build` takes it."""
        return PolicySpec(
            admission=self.admission.choice(),
            shedding=self.shedding.choice(),
            hedging=self.hedging.choice(),
            queueing=self.queueing.choice(),
            balancing=self.balancing.choice(),
        )

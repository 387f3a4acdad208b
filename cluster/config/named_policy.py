"""How one policy is named in a YAML file."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from policies.catalog import PolicyChoice


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

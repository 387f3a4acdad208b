"""How one policy is named in a YAML file."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cluster.config.strict import Strict, misfit
from policies.catalog import PolicyChoice


class PolicyConfig(Strict):
    """One policy; a name alone is short for one without parameters.

    Args:
        name: One of the catalog, or the import path of your own: ``package.module:factory``.
        params: Keyword arguments of its constructor.
    """

    name: str
    params: dict[str, Any] = Field(default_factory=dict)

    def choice(self) -> PolicyChoice:
        """The same as :mod:`policies` takes it."""
        return PolicyChoice(name=self.name, params=self.params)


def _name_alone(value: object) -> object:
    if not isinstance(value, str | Mapping | PolicyConfig):
        raise misfit("", value, "a policy's name, or a mapping with its name and params")
    return {"name": value} if isinstance(value, str) else value


NamedPolicy = Annotated[PolicyConfig, BeforeValidator(_name_alone)]
"""A policy in a file; a plain string is short for ``{name: ...}``."""

"""How policies are changed: by a baseline in a scenario file, and from the command line."""

from typing import Any

from pydantic import Field

from cluster.config.lanes import LanesConfig
from cluster.config.named_policy import NamedPolicy
from cluster.config.policies import PoliciesConfig
from cluster.config.slos import SlosConfig
from loadtests.scenario.fields import yaml_value
from loadtests.scenario.fleet_config import PoolConfig
from loadtests.schema.reading import Strict
from policies.errors import ConfigError
from routing.config.spec import LeaderFirst

QUESTIONS = (
    "planning",
    "length_prediction",
    "prefixes",
    "lanes.classifier",
    "lanes.guard",
    "admission",
    "degradation",
    "shedding",
    "preemption",
    "hedging",
    "retrying",
    "ejection",
    "engine_order",
    "queueing",
    "balancing",
    "scaling",
)
_ALLOWED = f"QUESTION=NAME or QUESTION.params.PARAMETER=VALUE; QUESTION is one of {', '.join(QUESTIONS)}"


class PolicyChanges(Strict):
    """How a baseline differs from the scenario's policies; what is left out is the same."""

    planning: NamedPolicy | None = None
    lanes: LanesConfig | None = None
    slos: SlosConfig | None = None
    length_prediction: NamedPolicy | None = None
    prefixes: NamedPolicy | None = None
    admission: NamedPolicy | None = None
    degradation: NamedPolicy | None = None
    shedding: NamedPolicy | None = None
    preemption: NamedPolicy | None = None
    hedging: NamedPolicy | None = None
    retrying: NamedPolicy | None = None
    ejection: NamedPolicy | None = None
    engine_order: NamedPolicy | None = None
    queueing: NamedPolicy | None = None
    balancing: NamedPolicy | None = None
    scaling: NamedPolicy | None = None

    def applied_to(self, policies: PoliciesConfig) -> PoliciesConfig:
        """The baseline's policies."""
        changes = {name: getattr(self, name) for name in PolicyChanges.model_fields}
        return policies.model_copy(update={name: change for name, change in changes.items() if change is not None})


class Baseline(PolicyChanges):
    """What a scenario's policies are compared with: other policies, on other pools or gateways if need be.

    Args:
        pools: As many replicas as the scenario's fleet has, in other roles.
        num_gateways: In place of the fleet's.
        kv_events: Likewise.
        prefill_window_tokens: In place of the dispatchers'.
        leader_first: Likewise.
    """

    pools: tuple[PoolConfig, ...] | None = None
    num_gateways: int | None = Field(default=None, ge=1, le=1024)
    kv_events: bool | None = None
    prefill_window_tokens: int | None = Field(default=None, ge=0)
    leader_first: LeaderFirst | None = None


def policy_setting(text: str) -> tuple[str, Any]:
    """Reads what ``--policy`` is given: a setting below ``policies``; see :mod:`loadtests.scenario.fields`.

    Args:
        text: ``balancing=power_of_two`` puts another policy in place, without parameters;
            ``hedging.params.delay_s=0.3`` sets a parameter of the one in place; ``lanes.guard=backlog`` and
            ``lanes.guard.params.off_ratio=0.5`` do the same where there are lanes.

    Raises:
        ConfigError: It is something else.
    """
    key, _, value = text.partition("=")
    question, dot, parameter = key.partition(".params.")
    if question not in QUESTIONS or not value or (dot and not parameter):
        raise ConfigError("--policy", text, _ALLOWED)
    return f"policies.{key}", yaml_value(value, "--policy", text) if dot else value

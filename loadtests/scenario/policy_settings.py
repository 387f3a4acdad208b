"""How policies are changed: by a baseline in a scenario file, and from the command line."""

from collections.abc import Sequence

import yaml

from cluster.config.lanes import LanesConfig
from cluster.config.named_policy import NamedPolicy, PolicyConfig
from cluster.config.policies import PoliciesConfig
from cluster.config.renamed import modernised
from loadtests.scenario.fleet_config import PoolConfig
from loadtests.schema.reading import Strict
from policies.errors import ConfigError

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
    "queueing",
    "balancing",
)
_ALLOWED = f"QUESTION=NAME or QUESTION.params.PARAMETER=VALUE; QUESTION is one of {', '.join(QUESTIONS)}"


class PolicyChanges(Strict):
    """How a baseline differs from the scenario's policies; what is left out is the same."""

    planning: NamedPolicy | None = None
    lanes: LanesConfig | None = None
    length_prediction: NamedPolicy | None = None
    prefixes: NamedPolicy | None = None
    admission: NamedPolicy | None = None
    degradation: NamedPolicy | None = None
    shedding: NamedPolicy | None = None
    preemption: NamedPolicy | None = None
    hedging: NamedPolicy | None = None
    retrying: NamedPolicy | None = None
    ejection: NamedPolicy | None = None
    queueing: NamedPolicy | None = None
    balancing: NamedPolicy | None = None

    def applied_to(self, policies: PoliciesConfig) -> PoliciesConfig:
        """The baseline's policies."""
        changes = {name: getattr(self, name) for name in PolicyChanges.model_fields}
        return policies.model_copy(update={name: change for name, change in changes.items() if change is not None})


class Baseline(PolicyChanges):
    """What a scenario's policies are compared with: other policies, on other pools if need be.

    Args:
        pools: As many replicas as the scenario's fleet has, in other roles.
    """

    pools: tuple[PoolConfig, ...] | None = None


def with_settings(policies: PoliciesConfig, settings: Sequence[str]) -> PoliciesConfig:
    """Policies with some of them changed from the command line.

    Args:
        policies: A scenario's.
        settings: ``balancing=power_of_two`` puts another policy in place, without parameters;
            ``hedging.params.delay_s=0.3`` sets a parameter of the one in place, with its value written as in YAML;
            ``lanes.guard=backlog`` and ``lanes.guard.params.off_ratio=0.5`` do the same where there are lanes. Later
            settings see earlier ones.

    Raises:
        ConfigError: A setting that can't be read, or about lanes where there are none.
    """
    for setting in settings:
        policies = _with_setting(policies, setting)
    return policies


def _with_setting(policies: PoliciesConfig, setting: str) -> PoliciesConfig:
    key, _, text = setting.partition("=")
    question, dot, parameter = key.partition(".params.")
    if question not in QUESTIONS or not text or (dot and not parameter):
        raise ConfigError("--policy", setting, _ALLOWED)
    group, _, part = question.rpartition(".")
    if group and not policies.lanes.lanes:
        raise ConfigError("--policy", setting, f"{question} only for scenarios that have lanes")
    holder: PoliciesConfig | LanesConfig = policies.lanes if group else policies
    policy: PolicyConfig = getattr(holder, part)
    named = {"name": policy.name, "params": {parameter: _value(setting, text)}} if dot else {"name": text, "params": {}}
    change = modernised({part: named})[part]
    if dot:
        change["params"] = {**policy.params, **change["params"]}
    changed = holder.model_copy(update={part: policy.model_copy(update=change)})
    return changed if isinstance(changed, PoliciesConfig) else policies.model_copy(update={group: changed})


def _value(setting: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("--policy", setting, "a value that YAML can read") from error

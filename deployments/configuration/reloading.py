"""What of the configuration may change while gateways run, through the ``user_config`` of the deployment ``gateway``.

``user_config`` is laid over what the YAML's ``args`` say: a question that it does not name is answered as there. Serve
hands it to each gateway at the start and whenever it has changed; nothing is restarted.
"""

from collections.abc import Mapping
from typing import Any

from cluster.config.renamed import modernised
from deployments.config import USER_CONFIG, AppConfig, validated
from deployments.configuration.models import Models
from policies.errors import ConfigError

GATEWAY = "gateway"
"""The deployment's name."""
LIMITS = (
    "max_attempts",
    "max_fruitless_losses",
    "leader_first",
    "quarantine_s",
    "probe_s",
    "prefill_window_tokens",
    "ramp_stage_s",
    "waiting_room_s",
    "retry_after_s",
    "client_retry_window_s",
    "request_timeout_s",
    "tenants",
)
"""What it may have of ``gateway``."""
SECTIONS = ("policies", "gateway", "models", "revision")
"""What it may have; ``models`` has ``policies`` of single ones, by their ids. ``revision`` says nothing, but where it
is another one, tenants are read again.
"""


def laid_over(models: Models, user_config: Mapping[str, Any]) -> Models:
    """The configuration of each model with what ``user_config`` says in the place of what it says itself.

    Args:
        models: What ``args`` say.
        user_config: ``policies``, ``gateway`` with fields of ``LIMITS``, ``models`` and ``revision``.

    Raises:
        ConfigError: Something else, or values that can't be.
    """
    _check_names(USER_CONFIG, user_config, SECTIONS)
    own = {} if user_config.get("models") is None else user_config["models"]
    _check_names(f"{USER_CONFIG}.models", own, tuple(each.model.id for each in models))
    for model, change in own.items():
        _check_names(f"{USER_CONFIG}.models.{model}", change, ("policies",))
    shared = {name: change for name, change in user_config.items() if name != "models"}
    return tuple(_with_own(_laid_over(each, shared), own.get(each.model.id)) for each in models)


def _with_own(config: AppConfig, change: Mapping[str, Any] | None) -> AppConfig:
    """With what is said of one model alone."""
    if change is None:
        return config
    try:
        return _laid_over(config, change)
    except ConfigError as error:
        field = error.field.removeprefix(f"{USER_CONFIG}.")
        raise ConfigError(f"{USER_CONFIG}.models.{config.model.id}.{field}", error.value, error.allowed) from error


def _laid_over(config: AppConfig, user_config: Mapping[str, Any]) -> AppConfig:
    user_config = modernised(user_config)
    given = {name: user_config.get(name) for name in ("policies", "gateway")}
    changes: dict[str, Any] = {name: {} if change is None else change for name, change in given.items()}
    _check_names(f"{USER_CONFIG}.gateway", changes["gateway"], LIMITS)
    if not isinstance(changes["policies"], Mapping):
        raise ConfigError(f"{USER_CONFIG}.policies", changes["policies"], "a mapping from questions to policies")
    if changes["gateway"].get("tenants", "") is None:
        allowed = "a place; without keys anybody could use the deployment, and that takes a restart"
        raise ConfigError(f"{USER_CONFIG}.gateway.tenants", None, allowed)
    document = config.model_dump(mode="json")
    for name, change in changes.items():
        document[name] |= change
    try:
        changed = validated(document)
    except ConfigError as error:
        raise ConfigError(f"{USER_CONFIG}.{error.field}", error.value, error.allowed) from error
    if changed.policies.scaling != config.policies.scaling:
        allowed = "what args say: one scaler asks it for all gateways, and another takes a restart"
        raise ConfigError(f"{USER_CONFIG}.policies.scaling", changed.policies.scaling.name, allowed)
    return changed


def user_config_in(application: Mapping[str, Any], deployment: str = GATEWAY) -> dict[str, Any]:
    """What one of the ``applications`` of a Serve configuration says for a deployment while it runs.

    Raises:
        ConfigError: Not a mapping, or several for that deployment.
    """
    deployments = application.get("deployments") or ()
    if not isinstance(deployments, list | tuple) or not all(isinstance(each, dict) for each in deployments):
        raise ConfigError("deployments", deployments, "a list of mappings, each with a name")
    named = [each for each in deployments if each.get("name") == deployment]
    if len(named) > 1:
        raise ConfigError("deployments", [each.get("name") for each in deployments], f"{deployment} once")
    found = named[0].get(USER_CONFIG) if named else None
    if found is not None and not isinstance(found, dict):
        holds = f" with {', '.join(SECTIONS)}" if deployment == GATEWAY else ""
        raise ConfigError(USER_CONFIG, found, f"a mapping{holds}")
    return found or {}


def _check_names(field: str, given: object, known: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(field, given, f"a mapping with {', '.join(known)}")
    for name in given:
        if name not in known:
            allowed = f"one of {', '.join(known)}; anything else takes a restart"
            raise ConfigError(f"{field}.{name}", given[name], allowed)

"""What a study lays over a deployment's configuration."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.config.strict import refusal
from cluster.seeds import Seeds
from cluster.sim.simulator import provided
from engines.model.profile import load_profile
from loadtests.live.counterpart import dispatcher_of, fleet_of
from loadtests.machine.systems import ROOT
from loadtests.schema.files import read_yaml
from policies.errors import ConfigError
from routing.assembly import build_dispatcher

CONFIGS = ROOT / "deployments" / "configs"
ANY_PROFILE = "h100-llama3-8b"
"""Stands for the costs of engines whose configuration names no profile; what is checked does not depend on them."""


def read_config(name: str) -> dict[str, Any]:
    """A configuration file, by its name in ``deployments/configs`` or by its path.

    Raises:
        ConfigError: There is none, or it is no Serve configuration with an application and its args.
    """
    path = CONFIGS / name if (CONFIGS / name).is_file() else Path(name)
    if not path.is_file():
        raise ConfigError("config", name, f"a file, or one of {sorted(each.name for each in CONFIGS.glob('*.yaml'))}")
    document: dict[str, Any] = read_yaml(path)
    try:
        document["applications"][0]["args"]["pools"][0]["name"]
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError("config", name, "a Serve configuration with an application and its args") from error
    return document


def laid_over(args: Any, patch: Any) -> Any:
    """A patch over a part of a configuration, as in RFC 7396: mappings key by key, ``null`` takes away, all else anew.

    A mapping that names something, as a policy with parameters does, stands for all of what it replaces.
    """
    if not isinstance(patch, dict) or "name" in patch:
        return patch
    merged = dict(args) if isinstance(args, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = laid_over(merged.get(key), value)
    return merged


def check_policies(document: dict[str, Any], profile: str | None = None) -> None:
    """Whether a dispatcher can be made of a configuration's policies.

    Args:
        document: The configuration.
        profile: Of its engines, by name or path; without it the configuration's own.

    Raises:
        ConfigError: It can't; field, value and what is allowed.
    """
    engine = document["applications"][0]["args"].get("engine", {})
    own = engine.get("profile") or engine.get("emulation", {}).get("profile") or ANY_PROFILE
    try:
        fleet = fleet_of(document, load_profile(profile or own), 0.0)
        spec = dispatcher_of(document, fleet)
    except ValidationError as error:
        raise refusal(error, "policies") from error
    build_dispatcher(spec, rng_for=Seeds(0).stream, provided=provided(fleet))

"""A fleet of the simulator as a deployment's configuration, for ``serve run``."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cluster.sim.topology import PoolSpec
from loadtests.plan.fleet_search import Candidate
from loadtests.plan.sizing.prediction import Replicas
from loadtests.scenario.scenario import Scenario
from loadtests.schema.files import read_yaml
from policies.errors import ConfigError
from routing.config.spec import DispatcherParams

ROOT = Path(__file__).parents[2]
LIKE = ROOT / "deployments/configs/emulated.yaml"
"""A deployment's engines, ports and the rest, unless another's are to be taken."""
_LIMITS = [each.name for each in fields(DispatcherParams)]


def deployment_document(candidate: Candidate, replicas: Replicas, like: Path = LIKE) -> dict[str, Any]:
    """The configuration of a deployment with a candidate's pools and policies.

    Args:
        candidate: Which.
        replicas: How many of each role.
        like: The deployment whose model, engines, resources and ports it has; a pool has what is said there of one with
            its role, or of the first.

    Raises:
        ConfigError: That is no deployment of spillway, or not of engines that could do what those in the scenario do.
    """
    document: dict[str, Any] = read_yaml(like)
    args = _args_of(document, like)
    scenario = candidate.scenario
    like_pools, simulated = args["pools"], scenario.fleet_spec().pools
    args["pools"] = [_pool(pool, replicas[pool.role], like_pools) for pool in simulated]
    for pool, written in zip(simulated, args["pools"], strict=True):
        _set_drafts(written["engine_args"], pool.speculation.num_speculative_tokens, args.get("engine", {}), like)
    args["policies"] = scenario.policies.model_dump(mode="json", exclude_defaults=True)
    num_gateways = scenario.fleet.num_gateways or 1
    gateway = {name: value for name, value in args.get("gateway", {}).items() if name not in _LIMITS}
    args["gateway"] = {**gateway, **_limits(scenario), "replicas": num_gateways, "load_coordinator": True}
    _set_engine(args.setdefault("engine", {}), scenario)
    return document


def deployment_text(document: Mapping[str, Any], about: str) -> str:
    """A configuration as YAML, with a comment above it."""
    comment = "".join(f"# {line}\n" for line in about.splitlines())
    return comment + yaml.safe_dump(dict(document), sort_keys=False)


def write(path: Path, text: str) -> None:
    """Writes a file, and its folder if need be.

    Raises:
        ConfigError: It can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), error.strerror, "a file that can be written") from error


def _args_of(document: Any, like: Path) -> dict[str, Any]:
    try:
        args: dict[str, Any] = document["applications"][0]["args"]
        if args["pools"]:
            return args
    except (KeyError, IndexError, TypeError):
        pass
    raise ConfigError("--like", str(like), "a configuration like deployments/configs/emulated.yaml, with pools")


def _pool(pool: PoolSpec, replicas: int, like: Sequence[dict[str, Any]]) -> dict[str, Any]:
    base = next((each for each in like if each["role"] == pool.role.value), like[0])
    limits: dict[str, Any] = {"max_num_batched_tokens": pool.limits.max_num_batched_tokens}
    if pool.limits.long_prefill_token_threshold:
        limits["long_prefill_token_threshold"] = pool.limits.long_prefill_token_threshold
    if pool.limits.priority_scheduling:
        limits["scheduling_policy"] = "priority"
    return {
        **base,
        "name": pool.name or pool.role.value,
        "role": pool.role.value,
        "replicas": replicas,
        "max_num_seqs": pool.limits.max_num_seqs,
        "waiting_fraction": pool.waiting_fraction,
        "whole_requests": pool.whole_requests,
        "engine_args": {**base.get("engine_args", {}), **limits},
    }


def _set_drafts(engine_args: dict[str, Any], number: int, engine: Mapping[str, Any], like: Path) -> None:
    """As many draft tokens as were simulated; a real engine has to be told where they come from."""
    source: dict[str, Any] = {**engine.get("args", {}), **engine_args}.get("speculative_config") or {}
    if number and not source and engine.get("kind") != "emulated":
        allowed = "a configuration with engine.args.speculative_config, as engines of the scenario have draft tokens"
        raise ConfigError("--like", str(like), allowed)
    if number or source:
        engine_args["speculative_config"] = {**source, "num_speculative_tokens": number} if number else None


def _limits(scenario: Scenario) -> dict[str, Any]:
    """Of dispatchers, those that are not the defaults."""
    limits = {name: getattr(scenario.dispatcher, name) for name in _LIMITS}
    return {name: value for name, value in limits.items() if value != getattr(DispatcherParams(), name)}


def _set_engine(engine: dict[str, Any], scenario: Scenario) -> None:
    """Emulated engines emulate the profile; of others the router takes it to be what they are like."""
    if engine.get("kind") == "emulated":
        engine["emulation"] = {**engine["emulation"], "profile": scenario.profile}
    else:
        engine["profile"] = scenario.profile
    if scenario.fleet.kv_events:
        engine["kv_events"] = True

"""In which steps one configuration takes another one's place: pool by pool, a few replicas first, or all at once."""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deployments.config import NUM_REPLICAS, USER_CONFIG
from deployments.configuration.models import pools_of
from deployments.configuration.reloading import user_config_in

Sizes = Mapping[tuple[str, str], int]
"""Replicas that deployments have or will have, by application and name."""


class Step(NamedTuple):
    """What is deployed before it is seen whether users suffer.

    Args:
        what: In words.
        document: All of the configuration.
    """

    what: str
    document: dict[str, Any]


def steps(document: dict[str, Any], running: dict[str, Any], sizes: Sizes, canary_fraction: float) -> list[Step]:
    """From what runs to what is wanted.

    Where ``args`` are the same, each pool whose engines are to have other arguments has them one after the other: first
    some of its replicas as canaries, then all. Serve takes another ``args`` for another application, and replaces it
    all.

    Args:
        document: What is wanted.
        running: What runs.
        sizes: How large pools are.
        canary_fraction: How many of a pool's replicas are tried first, of all; 0: none.
    """
    if any(new["args"] != old["args"] for new, old in _pairs(document, running)):
        return [Step("all of it, a fifth of each pool's replicas at a time", document)]
    found, now = list[Step](), running
    for application, pool in _changed_pools(document, running):
        wanted = user_config_in(_named(document, application), pool)
        before = user_config_in(_named(running, application), pool)
        size = sizes.get((application, pool), 1)
        tried = math.ceil(canary_fraction * size)
        if 0 < tried < size and "canary" not in wanted:
            canary = {"engine_args": wanted.get("engine_args", {}), "replicas": tried}
            now = _with_user_config(now, application, pool, {**before, "canary": canary})
            found.append(Step(f"pool {pool}: {tried} of {size} replicas", now))
        now = _with_user_config(now, application, pool, wanted)
        found.append(Step(f"pool {pool}: all {size} replicas", now))
    if not found or found[-1].document != document:
        found.append(Step("the rest", document))
    return found


def with_sizes(document: dict[str, Any], sizes: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """The document with pools that a policy scales as large as they are; Serve would begin anew with ``replicas``.

    Args:
        document: A configuration.
        sizes: Replicas that deployments have or will have, by application and name.
    """
    document = copy.deepcopy(document)
    for application in document["applications"]:
        deployments = {each["name"]: each for each in application.get("deployments") or ()}
        for pool in pools_of(application["args"]):
            size = sizes.get((application["name"], pool["name"]))
            if pool.get("autoscaling") and size:
                deployments[pool["name"]] = {**deployments.get(pool["name"], {}), "name": pool["name"]}
                deployments[pool["name"]][NUM_REPLICAS] = size
        application["deployments"] = list(deployments.values())
    return document


def _pairs(document: dict[str, Any], running: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Applications of the same name; one that is new has another one's ``args`` to differ from."""
    before = {each["name"]: each for each in running["applications"]}
    for application in document["applications"]:
        yield application, before.get(application["name"], {"args": None})


def _changed_pools(document: dict[str, Any], running: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for new, old in _pairs(document, running):
        for pool in pools_of(new["args"]):
            if user_config_in(new, pool["name"]) != user_config_in(old, pool["name"]):
                yield new["name"], pool["name"]


def _named(document: dict[str, Any], application: str) -> dict[str, Any]:
    return next(each for each in document["applications"] if each["name"] == application)


def _with_user_config(
    document: dict[str, Any], application: str, deployment: str, user_config: dict[str, Any]
) -> dict[str, Any]:
    """The same with another ``user_config`` of a deployment; none where it is empty."""
    document = copy.deepcopy(document)
    named = _named(document, application)
    deployments = {each["name"]: each for each in named.get("deployments") or ()}
    changed = {key: value for key, value in deployments.get(deployment, {}).items() if key != USER_CONFIG}
    more = {USER_CONFIG: user_config} if user_config else {}
    deployments[deployment] = {**changed, "name": deployment, **more}
    named["deployments"] = list(deployments.values())
    return document

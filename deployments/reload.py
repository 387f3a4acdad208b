"""Changes policies, limits and the sizes of pools of a deployment that the launcher runs, without a restart.

``python -m deployments.reload CONFIG [--port N]``

CONFIG is the file that the launcher was started with; what may differ is the ``user_config`` of the deployment
``gateway``, and ``replicas`` of pools. Exit status: 0 once Serve has handed it to all gateways, 2 when something in it
can't be.
"""

import argparse
import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from deployments.config import NUM_REPLICAS, USER_CONFIG
from deployments.configuration.models import models_in, pools_of
from deployments.configuration.reloading import GATEWAY
from deployments.local.places import config_of, join, prepare_to_join
from policies.errors import ConfigError, ServingError

PATIENCE_S = 60.0
POLL_S = 0.2


class ReloadFailed(ServingError):
    """Serve did not take it."""


def check_rest(document: dict[str, Any], running: dict[str, Any]) -> None:
    """Whether nothing differs from what runs but the gateways' ``user_config`` and the sizes of pools.

    Raises:
        ConfigError: Something else does, which takes a restart.
    """
    for place, value in _differences(_rest(running), _rest(document)):
        changeable = f"{USER_CONFIG} of {GATEWAY} and replicas of pools"
        allowed = f"what runs, but for {changeable}; python -m deployments.roll replaces the rest"
        raise ConfigError(place, value, allowed)


def in_place(document: dict[str, Any], running: dict[str, Any]) -> dict[str, Any]:
    """The document as Serve takes it without a restart.

    An application whose ``args`` differ is a new one to Serve, so they stay what they are, and pools that have another
    size have it beside them, as ``num_replicas`` of their deployment. To Serve another number there is a size to go to,
    so that of a pool that a policy scales stays.

    Args:
        document: What is wanted.
        running: What runs, as this function or the launcher left it.
    """
    document = copy.deepcopy(document)
    for application, before in zip(document["applications"], running["applications"], strict=True):
        sizes, first_sizes = (_sizes(each["args"]) for each in (application, before))
        deployments = {each["name"]: each for each in application.get("deployments") or ()}
        kept = {each["name"]: each[NUM_REPLICAS] for each in before.get("deployments") or () if NUM_REPLICAS in each}
        scaled = [pool["name"] for pool in pools_of(before["args"]) if pool.get("autoscaling")]
        resized = {pool: size for pool, size in sizes.items() if size != first_sizes[pool]}
        for pool, size in ({pool: kept[pool] for pool in scaled if pool in kept} | resized).items():
            deployments[pool] = {NUM_REPLICAS: size, "name": pool, **deployments.get(pool, {})}
        application["args"] = before["args"]
        application["deployments"] = list(deployments.values())
    return document


def _sizes(args: dict[str, Any]) -> dict[str, int]:
    return {pool.name: pool.replicas for each in models_in(args) for pool in each.pools}


def _differences(before: object, after: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Where two documents differ, and what the second has there."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(name), after.get(name), f"{place}.{name}".lstrip("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from _differences(*pair, f"{place}.{number}")
    elif before != after:
        yield place, after


def _rest(document: dict[str, Any]) -> dict[str, Any]:
    rest = copy.deepcopy(document)
    for application in rest["applications"]:
        for deployment in application.get("deployments") or ():
            if deployment.get("name") == GATEWAY:
                deployment.pop(USER_CONFIG, None)
            if isinstance(deployment.get(NUM_REPLICAS), int):
                del deployment[NUM_REPLICAS]
        left = [each for each in application.pop("deployments", None) or () if each.keys() - {"name"}]
        application["deployments"] = left
        for pool in pools_of(application["args"]):
            pool.pop("replicas", None)
    return rest


def apply(config: Path, port: int) -> None:
    """Has the deployment on an HTTP port go on with a file's ``user_config`` and sizes of pools.

    Raises:
        ConfigError: Nothing runs there, or the file can't be applied to it.
        ReloadFailed: A gateway did not take it in time.
    """
    prepare_to_join()
    from deployments.launch import load  # noqa: PLC0415 - Ray, which it imports, reads its environment first

    document = load(config, port)
    written = config_of(port)
    running = yaml.safe_load(written.read_text())
    check_rest(document, running)
    document = in_place(document, running)
    join(port)
    from deployments.wire.serve_internals import deploy_document  # noqa: PLC0415 - as above

    deploy_document(document)
    _wait(tuple(application["name"] for application in document["applications"]))
    written.write_text(yaml.safe_dump(document, sort_keys=False))


def _wait(applications: tuple[str, ...]) -> None:
    """Until every gateway has been told, or has refused. Engines of a pool that grows may take longer to start."""
    from ray import serve  # noqa: PLC0415 - as above

    def are(name: str, states: Callable[[Any], bool]) -> bool:
        found = serve.status().applications
        return name in found and states(found[name])

    pause, give_up_at_s = threading.Event(), time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at_s:
        if all(are(name, lambda each: each.status == "RUNNING") for name in applications):
            return
        pause.wait(POLL_S)
    if not all(are(name, lambda each: each.deployments[GATEWAY].status == "HEALTHY") for name in applications):
        raise ReloadFailed(f"not all gateways took it in {PATIENCE_S:.0f} s; see the deployment's log")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deployments.reload", description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="the file that the launcher was started with, changed")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port of the deployment")
    options = parser.parse_args(arguments)
    try:
        apply(options.config, options.port)
    except ServingError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"reloaded: {options.config}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

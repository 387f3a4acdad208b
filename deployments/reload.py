"""Changes policies and limits of a deployment that the launcher runs, without a restart.

``python -m deployments.reload CONFIG [--port N]``

CONFIG is the file that the launcher was started with; what may differ is the ``user_config`` of the deployment
``gateway``. Exit status: 0 once Serve has handed it to all gateways, 2 when something in it can't be.
"""

import argparse
import copy
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deployments.gateway.reloading import FIELD, GATEWAY
from deployments.places import join, place_of, prepare_to_join
from policies.errors import ConfigError, ServingError

PATIENCE_S = 60.0
POLL_S = 0.2


class ReloadFailed(ServingError):
    """Serve did not take it."""


def check_rest(document: dict[str, Any], running: dict[str, Any]) -> None:
    """Whether nothing differs from what runs but the gateways' ``user_config``.

    Raises:
        ConfigError: Something else does, which takes a restart.
    """
    for place, value in _differences(_without_user_config(running), _without_user_config(document)):
        raise ConfigError(place, value, f"what runs, but for {FIELD} of {GATEWAY}: anything else takes a restart")


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


def _without_user_config(document: dict[str, Any]) -> dict[str, Any]:
    rest = copy.deepcopy(document)
    for application in rest["applications"]:
        for deployment in application.get("deployments") or ():
            if deployment.get("name") == GATEWAY:
                deployment.pop(FIELD, None)
        left = [each for each in application.pop("deployments", None) or () if each.keys() - {"name"}]
        application["deployments"] = left
    return rest


def apply(config: Path, port: int) -> None:
    """Has the deployment on an HTTP port go on with a file's ``user_config``.

    Raises:
        ConfigError: Nothing runs there, or the file can't be applied to it.
        ReloadFailed: A gateway did not take it in time.
    """
    prepare_to_join()
    from deployments.launch import load  # noqa: PLC0415 - Ray, which it imports, reads its environment first

    document = load(config, port)
    written = place_of(port) / "serve.yaml"
    if not written.is_file():
        raise ConfigError("port", port, "the HTTP port of a deployment that the launcher runs here")
    check_rest(document, yaml.safe_load(written.read_text()))
    join(port)
    from deployments.wire.serve_internals import deploy_document  # noqa: PLC0415 - as above

    deploy_document(document)
    _wait(tuple(application["name"] for application in document["applications"]))
    written.write_text(yaml.safe_dump(document, sort_keys=False))


def _wait(applications: tuple[str, ...]) -> None:
    """Until every gateway has been told, or has refused."""
    from ray import serve  # noqa: PLC0415 - as above

    pause, give_up_at_s = threading.Event(), time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at_s:
        found = serve.status().applications
        if all(name in found and found[name].status == "RUNNING" for name in applications):
            return
        pause.wait(POLL_S)
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

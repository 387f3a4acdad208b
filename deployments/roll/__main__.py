"""Replaces what a deployment that the launcher runs is made of, replica by replica, and goes back where users suffer.

``python -m deployments.roll CONFIG [--port N] [--canary FRACTION] [--most-missed FRACTION] [--watch S]``

CONFIG is the file that the launcher was started with, changed. Other ``engine_args`` in a pool's ``user_config`` come
pool by pool: a few replicas try them first, then all have them, and what else there is goes on as it is. With another
value in ``args`` Serve replaces everything, a fifth of each pool's replicas at a time. Meanwhile, and for some seconds
after each step, the gateways' SLOs are watched. Exit status: 0 once everything is replaced, 1 when it was rolled back,
2 when it can't be tried.
"""

import argparse
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from deployments.local.places import config_of, join, prepare_to_join
from deployments.roll.misses import Misses, counts_in
from deployments.roll.steps import Sizes, steps, with_sizes
from policies.errors import ConfigError, ServingError

LOOK_EVERY_S = 1.0
SCRAPE_PATIENCE_S = 5.0
ROLLBACK_PATIENCE_S = 600.0
ENDED_BADLY = ("DEPLOY_FAILED", "UNHEALTHY")


class RollbackFailed(ServingError):
    """What ran before does not run again."""


def why_not(states: Mapping[str, str], misses: Misses, most_missed_fraction: float) -> str:
    """Why what is being deployed is not to stay; nothing where it may.

    Args:
        states: What Serve says of each application.
        misses: Of the requests since it began.
        most_missed_fraction: So many may miss an SLO.
    """
    bad = [f"{name} is {state}" for name, state in states.items() if state in ENDED_BADLY]
    if bad:
        return f"Serve says that {', '.join(bad)}"
    return misses.too_many(most_missed_fraction)


def roll(options: argparse.Namespace, tell: Callable[[str], None]) -> bool:
    """Rolls a configuration out; whether it has stayed.

    Args:
        options: Of the command line.
        tell: Is told in a line for people what happens.

    Raises:
        ConfigError: Nothing runs there, the file can't be served, or an option is out of range.
        RollbackFailed: It did not stay, and what ran before did not come back.
    """
    _check(options)
    prepare_to_join()
    from deployments.launch import load  # noqa: PLC0415 - Ray, which it imports, reads its environment first

    wanted, written = load(options.config, options.port), config_of(options.port)
    running = yaml.safe_load(written.read_text())
    join(options.port)
    sizes = _sizes()
    document, running = (with_sizes(each, sizes) for each in (wanted, running))
    from deployments.wire.serve_internals import deploy_document  # noqa: PLC0415 - as above

    for step in steps(document, running, sizes, options.canary):
        tell(f"replacing: {step.what}")
        if reason := _tried(step.document, options, deploy_document, tell):
            tell(f"going back: {reason}")
            deploy_document(running)
            _until_running(running, ROLLBACK_PATIENCE_S)
            return False
    written.write_text(yaml.safe_dump(document, sort_keys=False))
    return True


def _tried(
    document: dict[str, Any],
    options: argparse.Namespace,
    deploy: Callable[[dict[str, Any]], None],
    tell: Callable[[str], None],
) -> str:
    """Deploys it, and looks; why it is not to stay, if it is not."""
    from deployments.configuration.serve_file import url_of  # noqa: PLC0415 - as above

    url, misses = f"{url_of(document, options.port)}/metrics", Misses()
    _look(url, misses)
    deploy(document)
    reason = _watched(document, options, lambda: _look(url, misses), misses, tell)
    tell(f"seen meanwhile: {misses.seen()}")
    return reason


def _check(options: argparse.Namespace) -> None:
    if not 0 <= options.most_missed <= 1:
        raise ConfigError("--most-missed", options.most_missed, "0 to 1")
    if not 0 <= options.canary <= 1:
        raise ConfigError("--canary", options.canary, "0 to 1")
    if not 0 <= options.watch < math.inf:
        raise ConfigError("--watch", options.watch, "0 or more seconds")
    if not options.patience > 0:
        raise ConfigError("--patience", options.patience, "more than 0 seconds")


def _sizes() -> Sizes:
    from ray import serve  # noqa: PLC0415 - as above

    return {
        (application, name): sum(number for state, number in each.replica_states.items() if state != "STOPPING")
        for application, found in serve.status().applications.items()
        for name, each in found.deployments.items()
    }


def _watched(
    document: dict[str, Any],
    options: argparse.Namespace,
    look: Callable[[], None],
    misses: Misses,
    tell: Callable[[str], None],
) -> str:
    """Looks until all is replaced and some time after; why it is not to stay, if it is not."""
    pause, give_up_at_s, ends_at_s = threading.Event(), time.monotonic() + options.patience, 0.0
    while not ends_at_s or time.monotonic() < ends_at_s:
        pause.wait(LOOK_EVERY_S)
        look()
        states = _states(document)
        if reason := why_not(states, misses, options.most_missed):
            return reason
        if not ends_at_s and all(state == "RUNNING" for state in states.values()):
            tell(f"replaced; watching for {options.watch:g} s more")
            ends_at_s = time.monotonic() + options.watch
        if not ends_at_s and time.monotonic() > give_up_at_s:
            return f"it is not done after {options.patience:g} s"
    return ""


def _states(document: dict[str, Any]) -> dict[str, str]:
    from ray import serve  # noqa: PLC0415 - as above

    found = serve.status().applications
    names = [application["name"] for application in document["applications"]]
    return {name: str(found[name].status.value) if name in found else "NOT_STARTED" for name in names}


def _until_running(document: dict[str, Any], patience_s: float) -> None:
    pause, give_up_at_s = threading.Event(), time.monotonic() + patience_s
    while not all(state == "RUNNING" for state in _states(document).values()):
        if time.monotonic() > give_up_at_s:
            raise RollbackFailed(f"what ran before is not up again after {patience_s:g} s; see the deployment's log")
        pause.wait(LOOK_EVERY_S)


def _look(url: str, misses: Misses) -> None:
    """Gateways that are busy, or being replaced, may not answer; the next look has it all."""
    try:
        answer = httpx.get(url, timeout=SCRAPE_PATIENCE_S, verify=False)  # noqa: S501 - its own, by an address
        misses.see(counts_in(answer.raise_for_status().text))
    except httpx.HTTPError:
        return


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deployments.roll", description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="the file that the launcher was started with, changed")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port of the deployment")
    parser.add_argument(
        "--most-missed",
        type=float,
        default=0.05,
        metavar="FRACTION",
        help="go back where more of the requests miss an SLO or fail (default: 0.05)",
    )
    parser.add_argument(
        "--canary",
        type=float,
        default=0.2,
        metavar="FRACTION",
        help="how many of a pool's replicas try other engine_args first, of all; 0: none (default: 0.2)",
    )
    parser.add_argument(
        "--watch", type=float, default=60.0, metavar="S", help="how long to watch after each step (default: 60)"
    )
    parser.add_argument(
        "--patience", type=float, default=3600.0, metavar="S", help="go back where it takes longer (default: 3600)"
    )
    options = parser.parse_args(arguments)
    try:
        has_stayed = roll(options, lambda line: print(line, flush=True))
    except ServingError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"rolled out: {options.config}" if has_stayed else "rolled back: what ran before runs again")
    return 0 if has_stayed else 1


if __name__ == "__main__":
    sys.exit(main())

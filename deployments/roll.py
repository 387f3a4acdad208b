"""Replaces what a deployment that the launcher runs is made of, replica by replica, and goes back where users suffer.

``python -m deployments.roll CONFIG [--port N] [--most-missed FRACTION] [--watch S]``

CONFIG is the file that the launcher was started with, with anything in ``args`` changed: another engine, its arguments,
a pool's resources. Serve replaces a fifth of each pool's replicas at a time. Meanwhile, and for some seconds
afterwards, the gateways' SLOs are watched. Exit status: 0 once everything is replaced, 1 when it was rolled back, 2
when it can't be tried.
"""

import argparse
import copy
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.local.places import config_of, join, prepare_to_join
from policies.errors import ConfigError, ServingError

LEAST_REQUESTS = 20
"""Fewer say nothing of a fraction."""
LOOK_EVERY_S = 1.0
SCRAPE_PATIENCE_S = 5.0
ROLLBACK_PATIENCE_S = 600.0
ENDED_BADLY = ("DEPLOY_FAILED", "UNHEALTHY")


class RollbackFailed(ServingError):
    """What ran before does not run again."""


Counts = Mapping[tuple[str, ...], float]
"""What gateways count, by gateway and what of it."""


class Misses:
    """Of the requests that were answered since the first look: the part that missed an SLO, or failed."""

    def __init__(self) -> None:
        self._last: Counts = {}
        self._num_looks = 0
        self._grown: dict[tuple[str, bool], float] = {}

    def see(self, counts: Counts) -> None:
        """What gateways have counted until now; one that was not there before has counted from nothing."""
        for key, value in counts.items():
            before = self._last.get(key, 0.0)
            if self._num_looks:
                _, of, is_missed = key
                sort = of, is_missed == "missed"
                self._grown[sort] = self._grown.get(sort, 0.0) + max(0.0, value - before)
        self._last = {**self._last, **counts}
        self._num_looks += 1

    def fraction(self) -> float:
        """The largest of those of each SLO, and of failures; 0 until enough were answered to say."""
        found = [0.0]
        for of in {of for of, _ in self._grown}:
            missed, met = (self._grown.get((of, is_missed), 0.0) for is_missed in (True, False))
            if missed + met >= LEAST_REQUESTS:
                found.append(missed / (missed + met))
        return max(found)


def counts_in(page: str) -> Counts:
    """What a page of metrics says of SLOs and of requests that failed."""
    counts: dict[tuple[str, ...], float] = {}
    for gateway, of, is_missed, value in _found_in(page):
        key = gateway, of, "missed" if is_missed else "met"
        counts[key] = counts.get(key, 0.0) + value
    return counts


def _found_in(page: str) -> Iterator[tuple[str, str, bool, float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            gateway = sample.labels.get("gateway", "")
            if sample.name == "spillway_lane_slo_total":
                yield gateway, sample.labels["slo"], sample.labels["met"] == "false", sample.value
            if sample.name == "spillway_requests_total" and sample.labels["outcome"] in ("completed", "failed"):
                yield gateway, "requests that failed", sample.labels["outcome"] == "failed", sample.value


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
    if misses.fraction() > most_missed_fraction:
        return f"{misses.fraction():.0%} of the requests missed an SLO or failed (allowed: {most_missed_fraction:.0%})"
    return ""


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
    document, running = (with_sizes(each, _sizes()) for each in (wanted, running))
    from deployments.wire.serve_internals import deploy_document  # noqa: PLC0415 - as above

    url, misses = f"http://127.0.0.1:{options.port}/metrics", Misses()
    _look(url, misses)
    deploy_document(document)
    tell("replacing: a fifth of each pool's replicas at a time")
    reason = _watched(document, options, lambda: _look(url, misses), misses, tell)
    if not reason:
        written.write_text(yaml.safe_dump(document, sort_keys=False))
        return True
    tell(f"going back: {reason}")
    deploy_document(running)
    _until_running(running, ROLLBACK_PATIENCE_S)
    return False


def _check(options: argparse.Namespace) -> None:
    if not 0 <= options.most_missed <= 1:
        raise ConfigError("--most-missed", options.most_missed, "0 to 1")
    if not 0 <= options.watch < math.inf:
        raise ConfigError("--watch", options.watch, "0 or more seconds")
    if not options.patience > 0:
        raise ConfigError("--patience", options.patience, "more than 0 seconds")


def with_sizes(document: dict[str, Any], sizes: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """The document with pools that a policy scales as large as they are; Serve would begin anew with ``replicas``.

    Args:
        document: A configuration.
        sizes: Replicas that deployments have or will have, by application and name.
    """
    document = copy.deepcopy(document)
    for application in document["applications"]:
        deployments = {each["name"]: each for each in application.get("deployments") or ()}
        for pool in application["args"]["pools"]:
            size = sizes.get((application["name"], pool["name"]))
            if pool.get("autoscaling") and size:
                deployments[pool["name"]] = {**deployments.get(pool["name"], {}), "name": pool["name"]}
                deployments[pool["name"]]["num_replicas"] = size
        application["deployments"] = list(deployments.values())
    return document


def _sizes() -> dict[tuple[str, str], int]:
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
        misses.see(counts_in(httpx.get(url, timeout=SCRAPE_PATIENCE_S).raise_for_status().text))
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
        "--watch", type=float, default=60.0, metavar="S", help="how long to watch once all is replaced (default: 60)"
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

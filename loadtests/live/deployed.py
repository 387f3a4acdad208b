"""A deployment of a study: started, put on its cores, brought to rest."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import yaml

from loadtests.drivers.completions import Endpoint
from loadtests.drivers.live_run import discover_model
from loadtests.machine.pinning import Pinned, pin, unpin
from loadtests.machine.systems import System, up
from loadtests.watch.gateway_page import MetricsPage, TookTooLong, wait_for

REST_PATIENCE_S = 90.0
REST_LOOKS = 6
"""Half a second apart; replicas report every half a second, and it takes them as long again."""
REPLICA_COUNTERS = ("spillway_replica_attempts_total", "spillway_replica_prompt_tokens_total")
INFO = "spillway_replica_info"


class AtRest:
    """Whether nothing is open and no KV held, and has been for so many looks that replicas' last reports are in."""

    def __init__(self) -> None:
        self._counted: tuple[float, ...] = ()
        self._num_looks = 0

    def __call__(self, page: MetricsPage) -> bool:
        counted = tuple(page.sum(name) for name in REPLICA_COUNTERS)
        held = page.sum("spillway_requests_open") + page.sum("spillway_replica_kv_cache_usage")
        self._num_looks = self._num_looks + 1 if held == 0 and counted == self._counted else 0
        self._counted = counted
        return self._num_looks >= REST_LOOKS


class Deployed:
    """A deployment that serves.

    Args:
        document: Its configuration.
        port: Where it answers.
        process: What has started it.
        pinned: Which of its processes were put where; ``None`` where all share all cores.

    Attributes:
        pools: Those of its configuration.
        num_gateways: As in its configuration.
        endpoint: Where requests go.
        pinned: As above.
    """

    def __init__(self, document: dict[str, Any], port: int, process: "Popen[bytes]", pinned: Pinned | None) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        args = document["applications"][0]["args"]
        self.pools: Sequence[dict[str, Any]] = args["pools"]
        self.num_gateways: int = args.get("gateway", {}).get("replicas", 1)
        self.endpoint = Endpoint(base_url=self.url, model=discover_model(self.url))
        self.pinned = pinned
        self._process = process
        self._num_replicas = sum(each.get("replicas", 1) for each in self.pools)

    @property
    def pid(self) -> int:
        """The process that has started all others."""
        return self._process.pid

    def at_rest(self) -> MetricsPage:
        """Waits until all replicas are there and have nothing to do; the metrics then, or when patience was over."""
        calm = AtRest()
        try:
            return wait_for(
                self.url,
                self._process,
                lambda page: calm(page) and len(page.by("replica", INFO)) >= self._num_replicas,
                REST_PATIENCE_S,
                f"{self._num_replicas} replicas at rest",
            )
        except TookTooLong as late:  # what is left behind is a metric of its own
            return late.page

    def replica(self, pool: str, number: int) -> tuple[str, int]:
        """Id and process of a replica, by its number in the alphabetical order of ids.

        Raises:
            RuntimeError: The gateways' metrics have none.
        """
        page = wait_for(self.url, self._process, lambda _: True, REST_PATIENCE_S, "anything")
        found = sorted(page.by("replica", INFO, pool=pool))
        if number >= len(found):
            raise RuntimeError(f"pool {pool} has {len(found)} replicas")
        (pid,) = page.by("pid", INFO, pool=pool, replica=found[number])
        return found[number], int(pid)


@contextmanager
def deployed(
    name: str,
    document: dict[str, Any],
    folder: Path,
    port: int,
    cores: tuple[Sequence[int], Sequence[int]] | None,
    *,
    num_nodes: int = 1,
) -> Iterator[Deployed]:
    """Runs a configuration for as long as the block lasts.

    Args:
        name: Of the files that are written.
        document: The configuration.
        folder: Gets the configuration and the log.
        port: Where it is to answer.
        cores: Those of engines, and those of everything else, this client included; ``None``: all share all.
        num_nodes: Ray nodes, all on this machine.

    Raises:
        RuntimeError: It does not start; the message names its log.
    """
    path = folder / f"{name}.config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    command = [sys.executable, "-m", "deployments.launch", str(path), "--port", str(port), "--nodes", str(num_nodes)]
    system = System(name=name, command=command, port=port, ready_path="/ready", ready_text='"ready"', env={})
    with up(system, folder / f"{name}.log") as process:
        pinned = pin(process.pid, *cores) if cores else None
        try:
            yield Deployed(document, port, process, pinned)
        finally:
            if cores:
                unpin()

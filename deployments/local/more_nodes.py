"""More Ray nodes on one machine, for a deployment that the launcher runs: what a cluster of several does can be tried.

A node of these has no CPUs and one resource, ``node1``, ``node2`` and so on, so that nothing is placed there but what
asks for it: ``{num_cpus: 0, resources: {node1: 0.01}}`` of a pool.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from deployments.local.places import ports_files, ray_address

OBJECT_STORE_BYTES = 100_000_000
"""Nothing of ours is kept there."""


class MoreNodes:
    """Nodes beside the first one; none is started before that is there. As a context, it stops them at its end.

    Args:
        number: How many.
        port: The deployment's HTTP port.
        environment: What Ray finds in its environment.
        log: Gets what they print.
    """

    def __init__(self, number: int, port: int, environment: Mapping[str, str], log: Path) -> None:
        self._number = number
        self._port = port
        self._environment = {**os.environ, **environment}
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        self._made_s = time.time()  # noqa: TID251 - held against times of files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join(self) -> None:
        """Starts them, once the first node is there; nothing happens before, or the second time."""
        if len(self._processes) == self._number or not self._has_begun():
            return
        address = ray_address(self._port)
        with self._log.open("wb") as output:
            for number in range(1, self._number + 1):
                command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--block"]
                command += ["--num-cpus=0", "--num-gpus=0", "--resources", f'{{"node{number}": 1}}']
                command += [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
                process = subprocess.Popen(
                    command, env=self._environment, stdout=output, stderr=subprocess.STDOUT, process_group=0
                )
                self._processes.append(process)

    def stop(self) -> None:
        """Ends them, with all that runs on them."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def _has_begun(self) -> bool:
        """Whether the first node of this start is there, and not only one of an earlier start."""
        return any(each.stat().st_mtime >= self._made_s for each in ports_files(self._port))

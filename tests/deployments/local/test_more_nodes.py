"""Ray nodes beside the first one; that they serve, and what their loss does, is a row of ``make chaos``."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from deployments.local import more_nodes
from deployments.local.more_nodes import MoreNodes

PORT = 18_234


class Started:
    """What was started in the place of nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ports: list[Path]) -> None:
        self.commands: list[list[str]] = []
        self.killed: list[int] = []
        monkeypatch.setattr(more_nodes, "ports_files", lambda port: ports)
        monkeypatch.setattr(more_nodes, "ray_address", lambda port: "127.0.0.1:6379")
        monkeypatch.setattr(subprocess, "Popen", self._start)
        monkeypatch.setattr(os, "killpg", lambda pid, _: self.killed.append(pid))

    def _start(self, command: list[str], **how: object) -> "Started":
        self.commands.append(command)
        self.pid = 1000 + len(self.commands)
        return self

    def wait(self) -> int:
        return 0

    @property
    def resources(self) -> list[dict[str, float]]:
        return [json.loads(command[command.index("--resources") + 1]) for command in self.commands]


def test_each_joins_once_and_has_a_resource_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ports = tmp_path / "gcs_server_port_1"
    started = Started(monkeypatch, [ports])
    nodes = MoreNodes(2, PORT, {}, tmp_path / "log")
    ports.write_text("6379")

    nodes.join()
    nodes.join()

    assert started.resources == [{"node1": 1}, {"node2": 1}]
    assert all("--address=127.0.0.1:6379" in command for command in started.commands)
    assert all("--num-cpus=0" in command for command in started.commands)


def test_none_joins_before_the_first_node_of_this_start_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = tmp_path / "gcs_server_port_1"
    before.write_text("6379")
    os.utime(before, (1.0, 1.0))
    started = Started(monkeypatch, [before])

    MoreNodes(1, PORT, {}, tmp_path / "log").join()

    assert started.commands == []


def test_one_node_alone_joins_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = Started(monkeypatch, [])
    nodes = MoreNodes(0, PORT, {}, tmp_path / "log")
    nodes.join()
    nodes.stop()
    assert (started.commands, started.killed) == ([], [])


def test_all_of_a_node_ends_with_the_deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ports = tmp_path / "gcs_server_port_1"
    started = Started(monkeypatch, [ports])
    nodes = MoreNodes(1, PORT, {}, tmp_path / "log")
    ports.write_text("6379")
    nodes.join()

    nodes.stop()
    nodes.stop()

    assert started.killed == [1001]

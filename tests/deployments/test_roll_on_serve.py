"""Engines are replaced under open streams, and what makes users suffer goes back: on Ray Serve, by the command."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deployments.config import ROOT
from deployments.launch import Deployment, running
from engines.peer_port import free_port
from tests.deployments.live_cluster import emulated_args
from tests.deployments.streams import Streams
from tests.engines.emulated_engines import ensure_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.proof]

TOKENS = 20
EVERY_S = 0.5
SLO_S = 1.0
LONGEST_S = 120
"""What is replaced may finish its streams for so long."""
SLOWER = 0.005
"""Of an engine's speed: the first token comes after some two seconds, the last after half a minute."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roll")


def written(folder: Path, name: str, **emulation: Any) -> Path:
    """Two replicas a pool and two gateways, with something of the emulation changed."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args = emulated_args(pools=(2, 2), replicas=2, graceful_shutdown_timeout_s=LONGEST_S)
    for pool in args["pools"]:
        pool["graceful_shutdown_timeout_s"] = LONGEST_S
    args["engine"]["emulation"] |= emulation
    args["policies"]["slos"] = {"ttft_s": SLO_S}
    document["applications"][0]["args"] = args
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[Deployment]:
    ensure_tokenizer()
    with running(written(folder, "first"), free_port("127.0.0.1")) as found:
        yield found


@contextmanager
def steady_streams(deployment: Deployment) -> Iterator[list["Future[int]"]]:
    """A stream every so often while the block runs; what has become of each, once it has ended."""
    is_over, answers = threading.Event(), list["Future[int]"]()
    limits = httpx.Limits(max_connections=128)
    with (
        httpx.Client(base_url=deployment.url, timeout=120, limits=limits) as http,
        ThreadPoolExecutor(max_workers=128) as pool,
    ):
        streams = Streams(http, pool)

        def begin() -> None:
            while not is_over.wait(EVERY_S):
                answers.extend(streams.begin("standard", 1, TOKENS))

        thread = threading.Thread(target=begin)
        thread.start()
        try:
            yield answers
        finally:
            is_over.set()
            thread.join()


def rolled(deployment: Deployment, config: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    port = deployment.url.rpartition(":")[2]
    command = [sys.executable, "-m", "deployments.roll", str(config), "--port", port, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def emulated_speed(deployment: Deployment) -> float:
    """As the live page has it."""
    with httpx.stream("GET", f"{deployment.url}/live/events", timeout=30) as answer:
        line = next(each for each in answer.iter_lines() if each.startswith("data: "))
    speed: float = yaml.safe_load(line.removeprefix("data: "))["deployment"]["speed"]
    return speed


def test_engines_are_replaced_and_every_stream_is_whole(deployment: Deployment, folder: Path) -> None:
    with steady_streams(deployment) as answers:
        ran = rolled(deployment, written(folder, "faster", speed=1.5), "--watch", "5")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert emulated_speed(deployment) == 1.5
    assert [each.result() for each in answers] == [TOKENS] * len(answers)


def test_engines_that_make_requests_late_go_back_and_every_stream_is_whole(
    deployment: Deployment, folder: Path
) -> None:
    with steady_streams(deployment) as answers:
        ran = rolled(deployment, written(folder, "slower", speed=SLOWER), "--most-missed", "0.2")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "of the requests missed an SLO or failed (allowed: 20%)" in ran.stdout
    assert emulated_speed(deployment) == 1.5
    assert [each.result() for each in answers] == [TOKENS] * len(answers)

"""Engines are replaced under open streams, and what makes users suffer goes back: on Ray Serve, by the command."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deployments.config import ROOT
from deployments.launch import Deployment, running
from deployments.local.places import config_of
from engines.peer_port import free_port
from tests.deployments.gateway_logs import check_logs
from tests.deployments.live_cluster import emulated_args
from tests.deployments.streams import EVERY_S, steady_streams
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.proof]

TOKENS = 20
SLO_S = 1.0
LONGEST_S = 120
"""What is replaced may finish its streams for so long."""
SLOWER = 0.005
"""Of an engine's speed: the first token comes after some two seconds, the last after half a minute."""
LATE = 1000.0
"""Times as slow: a prompt takes a multiple of the SLO."""
STALL_AFTER_S = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roll")


def written(folder: Path, name: str, **emulation: Any) -> Path:
    """Two replicas a pool and four gateways below a path of their own, with something of the emulation changed."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    limits = {"graceful_shutdown_timeout_s": LONGEST_S, "stall_after_s": STALL_AFTER_S}
    args = emulated_args(pools=(2, 2), replicas=4, event_log=str(folder / "logs"), **limits)
    for pool in args["pools"]:
        pool["graceful_shutdown_timeout_s"] = LONGEST_S
    args["engine"]["emulation"] |= emulation
    args["policies"] |= {"slos": {"ttft_s": SLO_S}, "balancing": "round_robin"}  # canaries get their share
    document["applications"][0] |= {"args": args, "route_prefix": "/llm"}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[Deployment]:
    ensure_tokenizer()
    with running(written(folder, "first"), free_port("127.0.0.1")) as found:
        yield found
    check_logs(folder / "logs")


def rolled(deployment: Deployment, config: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    port = str(urlsplit(deployment.url).port)
    command = [sys.executable, "-m", "deployments.roll", str(config), "--port", port, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def emulated_speed(deployment: Deployment) -> float:
    """As the live page has it."""
    with httpx.stream("GET", f"{deployment.url}/live/events", timeout=30) as answer:
        line = next(each for each in answer.iter_lines() if each.startswith("data: "))
    speed: float = yaml.safe_load(line.removeprefix("data: "))["models"][0]["deployment"]["speed"]
    return speed


def test_engines_are_replaced_and_every_stream_is_whole(deployment: Deployment, folder: Path) -> None:
    with steady_streams(deployment.url, TOKENS) as answers:
        ran = rolled(deployment, written(folder, "faster", speed=1.5), "--watch", "5")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert emulated_speed(deployment) == 1.5
    assert [each.result() for each in answers] == [TOKENS] * len(answers)


def test_engines_that_make_requests_late_go_back_and_every_stream_is_whole(
    deployment: Deployment, folder: Path
) -> None:
    with steady_streams(deployment.url, TOKENS) as answers:
        ran = rolled(deployment, written(folder, "slower", speed=SLOWER), "--most-missed", "0.2")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "requests missed: ttft (allowed: 20%)" in ran.stdout
    assert emulated_speed(deployment) == 1.5
    assert [each.result() for each in answers] == [TOKENS] * len(answers)


def samples(deployment: Deployment, name: str) -> list[Sample]:
    """On the page of metrics."""
    page = HTTP.get(f"{deployment.url}/metrics", timeout=30).text
    return [each for its in text_string_to_metric_families(page) for each in its.samples if each.name == name]


def replica_gauge(deployment: Deployment, name: str) -> dict[str, float]:
    """What each replica says, by its id."""
    return {each.labels["replica"]: each.value for each in samples(deployment, name)}


def gateways(deployment: Deployment) -> set[str]:
    return {each.labels["gateway"] for each in samples(deployment, "spillway_requests_open")}


def with_slowdowns(deployment: Deployment, folder: Path, **slowdowns: float) -> Path:
    """What runs, with engines of these pools so many times as slow as their profile says."""
    document = yaml.safe_load(config_of(urlsplit(deployment.url).port or 0).read_text())
    application = document["applications"][0]
    deployments = {each["name"]: each for each in application.get("deployments") or ()}
    for pool, slowdown in slowdowns.items():
        deployments[pool] = {"name": pool, "user_config": {"engine_args": {"slowdown": slowdown}}}
    application["deployments"] = list(deployments.values())
    path = folder / "slowdowns.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_engines_have_other_arguments_pool_by_pool_and_all_else_goes_on(deployment: Deployment, folder: Path) -> None:
    wait_until(lambda: len(gateways(deployment)) == 4, "all gateways say something")
    before = gateways(deployment), set(replica_gauge(deployment, "spillway_replica_is_canary"))
    with steady_streams(deployment.url, TOKENS) as answers:
        ran = rolled(deployment, with_slowdowns(deployment, folder, prefill=1.1, decode=1.2), "--watch", "3")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = [line for line in ran.stdout.splitlines() if line.startswith("replacing: ")]
    assert said == [
        f"replacing: pool {pool}: {replicas} replicas"
        for pool in ("prefill", "decode")
        for replicas in ("1 of 2", "all 2")
    ]
    assert [each.result() for each in answers] == [TOKENS] * len(answers)
    assert before == (gateways(deployment), set(replica_gauge(deployment, "spillway_replica_is_canary")))


def test_arguments_that_make_requests_late_are_tried_by_one_replica_and_go_back(
    deployment: Deployment, folder: Path
) -> None:
    changed = with_slowdowns(deployment, folder, prefill=LATE)
    canaries: list[float] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(EVERY_S):
            canaries.append(sum(replica_gauge(deployment, "spillway_replica_is_canary").values()))

    watcher = threading.Thread(target=look)
    watcher.start()
    with steady_streams(deployment.url, TOKENS) as answers:
        ran = rolled(deployment, changed, "--most-missed", "0.2", "--watch", "30")
    is_over.set()
    watcher.join()
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "replacing: pool prefill: 1 of 2 replicas" in ran.stdout
    assert "pool prefill: all" not in ran.stdout
    assert "requests missed: ttft of canaries (allowed: 20%)" in ran.stdout
    assert max(canaries) == 1
    assert sum(replica_gauge(deployment, "spillway_replica_is_canary").values()) == 0
    assert [each.result() for each in answers] == [TOKENS] * len(answers)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_canary_that_stands_still_goes_back_whatever_requests_may_miss(deployment: Deployment, folder: Path) -> None:
    harmless = with_slowdowns(deployment, folder, prefill=1.05)
    with steady_streams(deployment.url, TOKENS) as answers, ThreadPoolExecutor(max_workers=1) as aside:
        rolling = aside.submit(rolled, deployment, harmless, "--most-missed", "1", "--watch", "30")
        canaries: list[str] = []

        def is_in_service() -> bool:
            canaries[:] = [
                name for name, value in replica_gauge(deployment, "spillway_replica_is_canary").items() if value
            ]
            return bool(canaries)

        wait_until(is_in_service, "a canary is in service")
        infos = samples(deployment, "spillway_replica_info")
        [pid] = {int(each.labels["pid"]) for each in infos if each.labels["replica"] == canaries[0]}
        with standing_still(pid):
            wait_until(lambda: bool(samples(deployment, "spillway_canary_ejections_total")), "it is ejected")
        ran = rolling.result(timeout=300)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "going back: a canary was ejected: stalled" in ran.stdout
    assert [each.result() for each in answers] == [TOKENS] * len(answers)

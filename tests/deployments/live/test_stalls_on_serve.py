"""Replicas on Ray Serve that stand still: their process is stopped, or their engine makes no step."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from deployments.faults import CLEAR, switch
from tests.deployments.live_cluster import Live, RayNodes, application, emulated_args
from tests.deployments.streams import Streams
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

TOKENS, CLIENTS = 300, 6
"""Some four seconds of an engine that is slowed down twice."""


def stalling_args() -> dict[str, Any]:
    args = emulated_args()
    args["pools"][0] |= {"replicas": 2}
    args["engine"] |= {"args": {"max_num_batched_tokens": 512}}
    args["engine"]["emulation"]["speed"] = 0.5
    args["gateway"]["stall_after_s"] = 2.0
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "stalling", stalling_args()) as live:
        yield live


@pytest.fixture
def streams(running: Live) -> Iterator[Streams]:
    with httpx.Client(base_url=running.url, timeout=120) as http, ThreadPoolExecutor(max_workers=16) as pool:
        yield Streams(http, pool)


def replicas(running: Live) -> dict[str, int]:
    """The process of each replica."""
    return {labels["replica"]: int(labels["pid"]) for labels, _ in running.samples("spillway_replica_info")}


def busy(running: Live) -> str:
    """A replica that has several of the streams that are under way; empty while none has."""
    running_on = {
        labels["replica"]: value for labels, value in running.samples("spillway_replica_num_requests_running")
    }
    return next((replica for replica, number in running_on.items() if number >= 2), "")


def sent(running: Live) -> Counter[str]:
    """Attempts that each replica has got."""
    return Counter({labels["replica"]: int(value) for labels, value in running.samples("spillway_attempts_total")})


def ejections(running: Live) -> float:
    return running.metric("spillway_ejections_total", reason="stalled")


def test_what_a_stopped_process_has_goes_on_elsewhere(running: Live, streams: Streams) -> None:
    before = ejections(running)
    answers = streams.begin("standard", CLIENTS, TOKENS)
    wait_until(lambda: bool(busy(running)), "they run")
    stopped = busy(running)
    pid = replicas(running)[stopped]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: ejections(running) > before, "its gateway has noticed")
        answers += streams.begin("standard", CLIENTS, TOKENS)
        assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)
        assert running.metric("spillway_ejected_replicas") == 1, "it stands still yet"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: running.metric("spillway_ejected_replicas") == 0, "it is back")
    assert stopped in replicas(running)


def test_what_an_engine_has_that_makes_no_step_goes_on_elsewhere(running: Live, streams: Streams) -> None:
    before, sent_before = ejections(running), sent(running)
    answers = streams.begin("standard", CLIENTS, TOKENS)
    wait_until(lambda: (sent(running) - sent_before).total() == CLIENTS, "they are sent")
    ((stalled, _),) = (sent(running) - sent_before).most_common(1)  # one that has just come back may get none of so few
    switch("stall", "unified", stalled, application="stalling")
    try:
        wait_until(lambda: ejections(running) > before, "its gateway has noticed")
        assert [each.result(timeout=120) for each in answers] == [TOKENS] * len(answers)
        assert running.metric("spillway_ejected_replicas") == 1, "nobody asks it but the replica itself"
    finally:
        switch(CLEAR, "unified", stalled, application="stalling")
    wait_until(lambda: running.metric("spillway_ejected_replicas") == 0, "it is back")

"""What grows, what settles, and what only goes up and down."""

import random
import socket
from contextlib import ExitStack
from functools import partial

import psutil
import pytest

from loadtests.results.metrics import METRICS
from loadtests.watch.process_growth import MIB, YOUNG_S, ProcessGrowth
from tests.loadtests.child_process import child_process
from tests.waiting import wait_until

MINUTES = 30
NAMED_REPLICA = (
    "import subprocess, sys; subprocess.run(['ray::ServeReplica:spillway:decode', '-c', "
    "'import sys; print(1, flush=True); sys.stdin.read()'], executable=sys.executable)"
)

LISTEN = (
    "import socket, sys, threading; listening = socket.create_server(('127.0.0.1', 0)); clients = []; "
    "accept = lambda: [clients.append(listening.accept()) for _ in range(4)]; "
    "threading.Thread(target=accept, daemon=True).start(); print(1, flush=True); sys.stdin.read()"
)
LISTENING_GATEWAY = (
    "import subprocess, sys; "
    f"subprocess.run(['ray::ServeReplica:spillway:gateway', '-c', {LISTEN!r}], executable=sys.executable)"
)


def seen(rss_mib_at: dict[int, float], pid: int = 1, growth: ProcessGrowth | None = None) -> ProcessGrowth:
    growth = growth or ProcessGrowth(0, ["decode"])
    for minute, rss_mib in rss_mib_at.items():
        growth.see("gateway", pid, 60.0 * minute + 5.0, rss_bytes=int(rss_mib * MIB), num_fds=20)
    return growth


def test_a_process_that_grows_steadily_grows_as_much_in_an_hour() -> None:
    metrics = seen({minute: 200.0 + 0.5 * minute for minute in range(MINUTES)}).metrics()

    assert metrics["gateway_rss_growth_mib_per_h"].value == pytest.approx(30.0)
    assert metrics["gateway_rss_growth_high_mib_per_h"].value == pytest.approx(30.0, abs=0.1)
    assert metrics["gateway_fds_growth_per_h"].value == 0.0
    assert set(metrics) <= set(METRICS)


def test_what_goes_up_and_down_does_not_grow_and_is_less_sure() -> None:
    rng = random.Random(3)
    metrics = seen({minute: 200.0 + rng.uniform(-1, 1) for minute in range(MINUTES)}).metrics()

    growth, high = (metrics[f"gateway_rss_growth{end}_mib_per_h"].value for end in ("", "_high"))
    assert abs(growth) < 5.0 < high


def test_a_process_that_takes_the_place_of_another_does_not_count_as_growth() -> None:
    growth = seen(dict.fromkeys(range(10), 200.0))
    seen(dict.fromkeys(range(12, 20), 300.0), pid=2, growth=growth)

    assert growth.metrics()["gateway_rss_growth_mib_per_h"].value == 0.0


def test_two_minutes_say_nothing() -> None:
    assert seen({0: 200.0, 1: 300.0}).metrics() == {}


def has_accepted(process: psutil.Process, number: int) -> bool:
    return len(process.net_connections("tcp")) == 1 + number


def test_clients_that_come_are_not_a_growth_of_who_serves_them() -> None:
    with child_process(LISTENING_GATEWAY) as parent:
        (gateway,) = parent.children()
        port = gateway.net_connections("tcp")[0].laddr.port
        now_s = [gateway.create_time() + YOUNG_S]
        growth = ProcessGrowth(parent.pid, [], lambda: now_s[0])
        with ExitStack() as clients:
            for number in range(4):
                growth.look()
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                wait_until(partial(has_accepted, gateway, number + 1), "it has accepted")
                now_s[0] += 60.0

    assert growth.metrics()["gateway_fds_growth_per_h"].value == 0.0


def test_replicas_are_found_by_their_titles_once_they_are_not_young_any_more() -> None:
    with child_process(NAMED_REPLICA) as parent:
        (replica,) = parent.children()
        now_s = [0.0]
        growth = ProcessGrowth(parent.pid, ["decode"], lambda: now_s[0])
        for minute in range(5):
            now_s[0] = replica.create_time() + YOUNG_S - 60.0 + 60.0 * minute
            assert growth.look()

    metrics = growth.metrics()
    assert metrics["replica_rss_growth_mib_per_h"].samples == 3
    assert metrics["replica_fds_growth_per_h"].value == 0.0

"""Replicas that are sick without being dead, on Ray Serve in front of emulated engines: out, and back when well."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deployments import faults
from tests.deployments.live_cluster import Live, RayNodes, application, emulated_args, replicas_of
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "ejection"
POOL = "unified"
REPLICAS = 3
MAX_FAILURES = 3
OUT_S = 5.0
SLOW_FACTOR = 40.0
"""A token of the slow replica takes 0.3 s; sixteen times the usual is too slow, eight for one that is just back."""
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 24, "ignore_eos": True}


def application_args() -> dict[str, Any]:
    """Emulated replicas in real time, and an ejection that lasts equally long however often it happens.

    Without probes: they would keep out a replica that fails everything before it has failed often enough for that.
    """
    args = emulated_args(quarantine_s=0.2, probe_s=0.0)
    args["pools"] = [{"name": POOL, "role": "unified", "replicas": REPLICAS, "num_cpus": 0.01}]
    params = {
        "signs": ["failures", "tokens"],
        "max_failures": MAX_FAILURES,
        "factor": 4.0,
        "num_slow": 1,
        "base_s": OUT_S,
        "max_s": OUT_S,
    }
    ejection = {"name": "outlier", "params": params}
    args["policies"] = {"planning": "always_unified", "balancing": "least_work_left", "ejection": ejection}
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, APPLICATION, application_args()) as live:
        yield live


@pytest.fixture
def sick(running: Live) -> Iterator[str]:
    """One replica, without faults before the test and after it."""
    replica_id = faults.replicas_of(running.url, POOL)[0]
    yield replica_id
    switch("clear", replica_id)


def switch(kind: str, replica_id: str, factor: float = 1.0) -> None:
    faults.switch(kind, POOL, replica_id, factor=factor, application=APPLICATION)


def num_live(live: Live) -> int:
    """Replicas that the gateway would send something to."""
    return replicas_of(live.url).get(POOL, 0)


def num_attempts(live: Live, replica_id: str) -> float:
    """Attempts that the gateway has sent to the replica."""
    return live.metric("spillway_attempts_total", replica=replica_id)


def ask(live: Live, number: int = 1) -> list[int]:
    """The statuses of so many requests that are sent at once."""

    def status_of(_: int) -> int:
        return HTTP.post(f"{live.url}/v1/completions", json=BODY, timeout=60).status_code

    with ThreadPoolExecutor(max_workers=number) as pool:
        return list(pool.map(status_of, range(number)))


def ask_until(live: Live, number: int, condition: Callable[[], bool], what: str) -> list[int]:
    """Sends so many requests at once, again and again until the condition holds; all their statuses."""
    answers: list[int] = []

    def holds_now() -> bool:
        answers.extend(ask(live, number))
        return condition()

    wait_until(holds_now, what)
    return answers


def ejections(live: Live, reason: str) -> float:
    return live.metric("spillway_ejections_total", pool=POOL, reason=reason)


def check_that_it_is_out_and_comes_back(live: Live, sick: str) -> None:
    """The replica has just been ejected; its fault lasts."""
    attempts, total = num_attempts(live, sick), live.metric("spillway_ejections_total")
    assert live.metric("spillway_ejected_replicas", pool=POOL) == 1
    assert num_live(live) == REPLICAS - 1

    assert ask(live, 2 * REPLICAS) == [200] * (2 * REPLICAS)
    assert num_attempts(live, sick) == attempts, "nothing goes to a replica that is out"

    switch("clear", sick)
    wait_until(lambda: live.metric("spillway_ejected_replicas", pool=POOL) == 0, "its time is over")
    assert num_live(live) == REPLICAS
    answers = ask_until(
        live,
        REPLICAS,
        lambda: num_attempts(live, sick) >= attempts + 2,
        "it is sent requests again, the second one because the first went well",
    )
    assert answers == [200] * len(answers)
    assert live.metric("spillway_ejections_total") == total, "it stays in"


def test_a_replica_that_fails_every_request_is_out_until_it_is_well_again(running: Live, sick: str) -> None:
    """One request after the other; each that it fails on is answered by another one."""
    switch("fail", sick)
    before = ejections(running, "failures")

    answers = ask_until(
        running, 1, lambda: ejections(running, "failures") > before, "the replica has failed often enough"
    )

    assert answers == [200] * len(answers)
    check_that_it_is_out_and_comes_back(running, sick)


def test_a_replica_that_fails_is_probed_and_gets_no_request_before_it_is_well(nodes: RayNodes) -> None:
    """As it is by default: without a policy that ejects."""
    args = emulated_args(quarantine_s=1.0)
    args["pools"] = [{"name": POOL, "role": "unified", "replicas": REPLICAS, "num_cpus": 0.01}]
    with application(nodes, "probed", args) as live:
        sick = faults.replicas_of(live.url, POOL)[0]
        faults.switch("fail", POOL, sick, factor=1.0, application="probed")
        answers = ask_until(live, REPLICAS, lambda: probes(live, "failed") > 0, "it has failed on a probe")
        attempts = num_attempts(live, sick)

        answers += ask_until(live, REPLICAS, lambda: probes(live, "failed") > 2, "it has failed on more of them")
        assert num_attempts(live, sick) == attempts
        faults.switch("clear", POOL, sick, factor=1.0, application="probed")
        wait_until(lambda: probes(live, "well") == 1, "it has answered a probe")
        answers += ask_until(live, REPLICAS, lambda: num_attempts(live, sick) > attempts, "it gets requests again")

    assert answers == [200] * len(answers)


def probes(live: Live, result: str) -> float:
    return live.metric("spillway_probes_total", pool=POOL, result=result)


def test_a_replica_that_is_far_slower_than_its_peers_is_out_until_it_is_well_again(running: Live, sick: str) -> None:
    """Three answers of each replica say what is usual; one slow answer is enough then."""
    replicas = faults.replicas_of(running.url, POOL)
    known = {each: num_attempts(running, each) for each in replicas}
    usual = ask_until(
        running,
        2 * REPLICAS,
        lambda: all(num_attempts(running, each) >= known[each] + 3 for each in replicas),
        "each replica has answered three times",
    )
    switch("slow", sick, SLOW_FACTOR)
    before = ejections(running, "tokens")

    slow = ask_until(running, REPLICAS, lambda: ejections(running, "tokens") > before, "a slow answer has ended")

    answers = usual + slow
    assert answers == [200] * len(answers)
    check_that_it_is_out_and_comes_back(running, sick)

"""Processes get the cores that they should, and other people's work is told from one's own."""

import os
import sys
from collections import namedtuple
from collections.abc import Iterator

import psutil
import pytest

from loadtests.machine import machine_load
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.pinning import BEHIND_THE_CLIENT, cpu_s_of_others, pin, unpin
from tests.loadtests.child_process import child_process
from tests.waiting import wait_until

needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or (psutil.cpu_count() or 1) < 2, reason="binds threads to two cores"
)
WORKER = "import sys; print('up', flush=True); sys.stdin.read()"
ENGINE = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {WORKER!r}])"
DEPLOYMENT = f"""
import subprocess, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
subprocess.run(["VLLM::EngineCore", "-c", {ENGINE!r}], executable={sys.executable!r})
"""


@pytest.fixture
def deployment() -> Iterator[psutil.Process]:
    """A process that has started an engine process, which has started a worker of another name."""
    with child_process(DEPLOYMENT) as process:
        yield process
    unpin()


@needs_two_cores
def test_engines_and_what_they_start_get_their_cores_and_everybody_else_the_others(deployment: psutil.Process) -> None:
    """All threads of all of them, and this process too, which goes before the others."""
    pinned = pin(deployment.pid, (0,), (1,))

    engine = next(child for child in deployment.children() if child.cmdline()[0] == "VLLM::EngineCore")
    (worker,) = engine.children()
    assert os.sched_getaffinity(engine.pid) == os.sched_getaffinity(worker.pid) == {0}
    assert {frozenset(os.sched_getaffinity(thread.id)) for thread in deployment.threads()} == {frozenset({1})}
    assert os.sched_getaffinity(0) == {1}
    niceness = {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in deployment.threads()}
    assert niceness == {BEHIND_THE_CLIENT}
    assert os.getpriority(os.PRIO_PROCESS, engine.pid) == os.getpriority(os.PRIO_PROCESS, 0) == 0
    assert "VLLM::EngineCore" in str(pinned)
    assert sum(pinned.engines.values()) == 2

    unpin()
    assert len(os.sched_getaffinity(0)) >= 2


def test_the_processor_time_of_others_is_this_processs_and_not_the_engines(deployment: psutil.Process) -> None:
    engine = next(child for child in deployment.children() if child.cmdline()[0] == "VLLM::EngineCore")
    before_s = cpu_s_of_others(deployment.pid)

    began_s = sum(os.times()[:2])  # in the kernel's ticks, as what is measured: process_time() runs ahead of them
    while sum(os.times()[:2]) < began_s + 0.1:
        pass

    assert cpu_s_of_others(deployment.pid) >= before_s + 0.05
    assert cpu_s_of_others(engine.pid) == pytest.approx(sum(os.times()[:2]), abs=0.05)


def test_a_core_that_is_not_there_pins_nothing_and_says_so() -> None:
    """A machine with one core can run the comparison; it is told what its metrics are."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    pinned = pin(os.getpid(), (4096,), (0,))

    assert "nothing is pinned" in str(pinned)
    assert before is None or os.sched_getaffinity(0) == before


def test_foreign_load_is_what_neither_the_deployment_nor_the_client_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds on two cores: twelve CPU seconds busy, eight of them ours, so four of twenty are somebody else's."""
    times = namedtuple("times", ("user", "system", "idle", "steal"))
    machine = iter([times(100.0, 10.0, 500.0, 1.0), times(109.0, 12.0, 508.0, 2.0)])
    deployment_and_own_s = iter([20.0, 3.0, 26.0, 5.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(machine))
    monkeypatch.setattr(machine_load, "_cpu_s", lambda process: next(deployment_and_own_s))

    with child_process("print('up', flush=True); input()") as process:
        assert ForeignLoad(process.pid).fraction() == pytest.approx(4 / 20)


REPLICA = "import os; [0 for _ in iter(lambda: sum(os.times()[:2]) < 0.3, False)]; print('up', flush=True); input()"
TAKEN_AWAY = f"""
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Ray has it: nobody waits for it
replica = subprocess.Popen([sys.executable, "-c", {REPLICA!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
replica.stdout.readline()
print("up", flush=True)
sys.stdin.read()
"""


def test_what_a_deployment_has_started_and_taken_away_is_its_own() -> None:
    with child_process(TAKEN_AWAY) as process:
        (replica,) = process.children()
        load = ForeignLoad(process.pid)
        before_s = sum(load._cpu_s_by_process.values())
        replica.kill()
        wait_until(lambda: not process.children(), "it is gone")
        load.look()
        assert sum(load._cpu_s_by_process.values()) >= before_s >= 0.3

"""Cores that a replica has for itself: nobody else gets them while it lives, and they are free when it has ended."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.config import validated
from deployments.replica.isolation import CoreClaims, claim_cores, cores_by_numa_node
from policies.errors import EngineUnavailable
from tests.deployments.app_args import args, error_of
from tests.tables import for_each

TWO_NODES = [{0, 1, 2}, {3, 4, 5, 6}]
HOLDS_ONE = """
import sys
from pathlib import Path
from deployments.replica.isolation import CoreClaims
claims = CoreClaims(Path(sys.argv[1]), [{0}])
print(claims.claim(1), flush=True)
sys.stdin.read()
"""
BINDS = """
import asyncio, os, subprocess, sys, threading
from pathlib import Path
from deployments.replica.isolation import CoreClaims, claim_cores, cores_by_numa_node, lock_memory

async def main():
    release = threading.Event()
    threading.Thread(target=release.wait).start()
    cores = await claim_cores(1, CoreClaims(Path(sys.argv[1]), cores_by_numa_node()))
    of_threads = {tuple(os.sched_getaffinity(int(each.name))) for each in Path("/proc/self/task").iterdir()}
    script = "import os; print(sorted(os.sched_getaffinity(0)))"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    print(of_threads == {cores}, child.stdout.strip() == str(list(cores)))
    release.set()

asyncio.run(main())
"""


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[CoreClaims]]:
    """Four replicas of a machine with two NUMA nodes."""
    replicas = [CoreClaims(tmp_path, TWO_NODES) for _ in range(4)]
    yield replicas
    for each in replicas:
        each.give_back()


def test_cores_of_a_replica_are_all_of_one_numa_node_and_no_other_replica_gets_them(replicas: list[CoreClaims]) -> None:
    assert [each.claim(2) for each in replicas] == [(0, 1), (3, 4), (5, 6), ()]
    replicas[1].give_back()
    assert replicas[3].claim(2) == (3, 4)


def test_who_finds_too_few_takes_none(replicas: list[CoreClaims]) -> None:
    assert replicas[0].claim(3) == (0, 1, 2)

    assert replicas[1].claim(5) == ()
    assert replicas[2].claim(4) == (3, 4, 5, 6)


def test_a_replica_that_is_killed_has_no_cores_any_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS_ONE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "(0,)\n"
        other = CoreClaims(tmp_path, [{0}])
        assert other.claim(1) == ()
        process.kill()
        process.wait()
    assert other.claim(1) == (0,)
    other.give_back()


async def test_a_machine_that_has_too_few_is_said_when_waiting_was_in_vain(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="no NUMA node of this machine has 8 cores left"):
        await claim_cores(8, CoreClaims(tmp_path, TWO_NODES), patience_s=0.0)


def test_all_threads_run_on_the_cores_and_so_do_processes_that_are_started_later(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BINDS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_cores_are_read_from_the_kernels_lists_as_far_as_the_process_may_use_them(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    for node, cpulist in (("node0", f"{min(allowed)},500-502"), ("node1", "600-601,700\n")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cpulist)

    assert cores_by_numa_node(tmp_path) == [{min(allowed)}]
    assert cores_by_numa_node(tmp_path / "nothing") == [allowed]


@for_each(
    "case",
    [
        ({"isolation": {"cpu_cores": 2}}, "isolation.cpu_cores: got 2; allowed: 0 to num_cpus, which is 1"),
        ({"isolation": {"cpu_cores": -1}}, "isolation.cpu_cores"),
        ({"isolation": {"lock_memory": True}, "placement_group_strategy": "PACK"}, "isolation: got"),
    ],
    ids=["more_than_ray_sets_aside", "negative", "placement_group"],
)
def test_what_can_not_be_isolated_is_refused(case: tuple[dict[str, object], str]) -> None:
    pool, message = case
    assert message in str(error_of(validated, args(pools=[{"name": "unified", "role": "unified", **pool}])))

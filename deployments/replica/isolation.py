"""What a replica has of its node for itself: cores that no other replica gets, and memory that is not swapped out.

Cores are claimed by locks on files, one for each core, which the kernel gives back however a process ends. All threads
of the replica's process are bound to its cores, and the engine's processes, which it starts, inherit that.
"""

import asyncio
import ctypes
import fcntl
import os
import resource
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from cluster.private_folder import private_folder
from policies.errors import EngineUnavailable

CLAIM_PATIENCE_S = 30.0
"""The processes of a replica that has just ended may still have its cores."""
LOOK_EVERY_S = 0.5
NUMA_NODES = Path("/sys/devices/system/node")
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
"""Of ``mlockall``. What is only mapped, such as Ray's object store, is not read in with the last one."""


class CoreClaims:
    """Cores of this machine that this process has for itself, until it ends or gives them back.

    Args:
        folder: Where the locks are; all replicas of a machine have the same.
        cores: Those that there are, by NUMA node.
    """

    def __init__(self, folder: Path, cores: Sequence[Collection[int]]) -> None:
        self._folder = folder
        self._cores = cores
        self._held: list[TextIO] = []

    def claim(self, number: int) -> tuple[int, ...]:
        """As many cores of one NUMA node; none where no node has as many that no other replica has."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # two that take half of what each needs would both go without
            for node in self._cores:
                free = {core: lock for core in sorted(node) if (lock := self._lock(core)) is not None}
                chosen = tuple(free)[:number] if len(free) >= number else ()
                self._held += [free.pop(core) for core in chosen]
                for lock in free.values():
                    lock.close()
                if chosen:
                    return chosen
        return ()

    def give_back(self) -> None:
        """Others may have them."""
        for lock in self._held:
            lock.close()
        self._held.clear()

    def _lock(self, core: int) -> TextIO | None:
        lock = (self._folder / f"core-{core}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        return lock


def cores_by_numa_node(nodes: Path = NUMA_NODES) -> list[set[int]]:
    """Cores that this process may run on, by NUMA node; all in one where the kernel says nothing of nodes."""
    allowed = os.sched_getaffinity(0)
    found = [set(_numbers(path.read_text())) & allowed for path in sorted(nodes.glob("node[0-9]*/cpulist"))]
    return [cores for cores in found if cores] or [allowed]


def _numbers(cpulist: str) -> Iterator[int]:
    """What the kernel means by ``0-3,8``."""
    for part in filter(None, cpulist.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


async def claim_cores(number: int, claims: CoreClaims, patience_s: float = CLAIM_PATIENCE_S) -> tuple[int, ...]:
    """Claims cores and binds this process to them.

    Args:
        number: How many.
        claims: What else is claimed on this machine.
        patience_s: How long to wait for those of processes that end.

    Raises:
        EngineUnavailable: There are not as many.
    """
    give_up_at_s = asyncio.get_running_loop().time() + patience_s
    while not (cores := claims.claim(number)):
        if asyncio.get_running_loop().time() >= give_up_at_s:
            raise EngineUnavailable(f"isolation.cpu_cores: no NUMA node of this machine has {number} cores left")
        await asyncio.sleep(LOOK_EVERY_S)
    bind(cores)
    return cores


def bind(cores: Collection[int]) -> None:
    """All threads of this process run on these cores alone; those that begin later inherit that."""
    for _ in range(2):  # one that began in the first round may have been begun by a thread that was not bound yet
        for task in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), cores)
            except ProcessLookupError:  # it has ended meanwhile
                continue


def lock_memory() -> None:
    """What this process has in memory stays there, and its children may have the kernel pin as much as they like.

    Raises:
        EngineUnavailable: The machine does not allow it.
    """
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError) as error:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        allowed = "set it to unlimited for the user that runs Ray"
        raise EngineUnavailable(f"isolation.lock_memory: `ulimit -H -l` is {limit} bytes: {allowed}") from error
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT):
        reason = os.strerror(ctypes.get_errno())
        raise EngineUnavailable(f"isolation.lock_memory: the kernel refuses mlockall: {reason}")


def claims_of_this_machine() -> CoreClaims:
    """With the locks of this user's replicas."""
    return CoreClaims(private_folder() / "cores", cores_by_numa_node())

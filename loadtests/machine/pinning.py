"""Puts the processes of a deployment on cores of their own, so that engines and everything else don't take turns.

Linux alone has thread affinities; elsewhere nothing is pinned, and the caller is told so.
"""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ENGINE_PROCESS = "VLLM::"
"""How an engine's own processes begin their names; what they have started counts as theirs."""
DASHBOARD = "ray-dashboard"
"""A dozen processes whose names differ in what follows."""
BEHIND_THE_CLIENT = 10
"""Niceness of what shares its cores with the client: a burst is sent when it is due, and served after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What was pinned where.

    Args:
        engine_cores: Cores of the engines' processes; empty where nothing could be pinned.
        other_cores: Cores of the gateway, Serve, Ray and this process.
        engines: Engine processes by name, with their number.
        others: Other processes likewise.
    """

    engine_cores: Sequence[int] = ()
    other_cores: Sequence[int] = ()
    engines: Counter[str]
    others: Counter[str]

    def __str__(self) -> str:
        if not self.engine_cores:
            return "nothing is pinned: this system has no thread affinities, or a single core"
        return (
            f"on core {_listed(self.engine_cores)}: {_counted(self.engines)}; "
            f"on core {_listed(self.other_cores)}: {_counted(self.others)}, and this client"
        )


def pin(root_pid: int, engine_cores: Sequence[int], other_cores: Sequence[int]) -> Pinned:
    """Pins a process, all that it has started, and the calling process, which goes before the others on its cores.

    Args:
        root_pid: The process that started the deployment.
        engine_cores: Where engines go.
        other_cores: Where everything else goes.
    """
    engines: Counter[str] = Counter()
    others: Counter[str] = Counter()
    available = set(range(psutil.cpu_count() or 1))
    if not hasattr(os, "sched_setaffinity") or not {*engine_cores, *other_cores} <= available:
        return Pinned(engines=engines, others=others)
    root = psutil.Process(root_pid)
    everything = {process.pid: process for process in (root, *root.children(recursive=True))}
    engine_pids = _engine_pids(everything)
    for pid, process in everything.items():
        is_engine = pid in engine_pids
        cores, niceness = (engine_cores, 0) if is_engine else (other_cores, BEHIND_THE_CLIENT)
        if _pin_threads(pid, cores, niceness):
            (engines if is_engine else others)[name_of(process)] += 1
    _pin_threads(os.getpid(), other_cores)
    return Pinned(engine_cores=engine_cores, other_cores=other_cores, engines=engines, others=others)


def cpu_s_of_others(root_pid: int) -> float:
    """Processor time so far of all that a process has started but the engines, and of the calling process."""
    root = psutil.Process(root_pid)
    everything = {process.pid: process for process in (root, *root.children(recursive=True), psutil.Process())}
    engine_pids = _engine_pids(everything)
    total_s = 0.0
    for pid, process in everything.items():
        if pid not in engine_pids:
            with suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
    return total_s


def engines_of(root_pid: int) -> list[psutil.Process]:
    """The engine processes that a process has started, and what those have started; none when it is not there."""
    with suppress(psutil.Error):
        root = psutil.Process(root_pid)
        everything = {process.pid: process for process in root.children(recursive=True)}
        engine_pids = _engine_pids(everything)
        return [process for pid, process in everything.items() if pid in engine_pids]
    return []


def unpin() -> None:
    """Lets the calling process run anywhere again."""
    if hasattr(os, "sched_setaffinity"):
        _pin_threads(os.getpid(), range(psutil.cpu_count() or 1))


def _engine_pids(processes: dict[int, psutil.Process]) -> set[int]:
    found: set[int] = set()
    for pid, process in processes.items():
        if name_of(process).startswith(ENGINE_PROCESS):
            found.add(pid)
            with suppress(psutil.Error):
                found.update(child.pid for child in process.children(recursive=True))
    return found


def _pin_threads(pid: int, cores: Sequence[int], niceness: int = 0) -> bool:
    """Both belong to a thread; those started later inherit them from the one that starts them."""
    pinned = False
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
                if niceness:  # only ever more: less takes a privilege
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
                pinned = True
    return pinned


def name_of(process: psutil.Process) -> str:
    """What a process is for: its title where Ray or vLLM has given it one, its program's name elsewhere."""
    try:
        title = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "a process that has ended"
    if title.startswith(("ray::", ENGINE_PROCESS)):
        return title.split()[0]
    return DASHBOARD if title.startswith(DASHBOARD) else process.name()


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in sorted(names.items())) or "nothing"

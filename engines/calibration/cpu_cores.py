"""Keeps processes on cores of their own, so that a measurement on a small machine can be repeated."""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil


def pin_engine(engine_cores: Iterable[int], front_cores: Iterable[int]) -> None:
    """Engine processes, which are this process's children, to some cores; this process itself to others.

    Threads are bound one by one: on Linux a process's affinity is that of its first thread. Threads that start later
    inherit from the thread that starts them.

    Raises:
        OSError: This machine has no such core.
        NotImplementedError: The operating system can't bind threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise NotImplementedError("only Linux binds threads to cores")
    this = psutil.Process()
    for child in this.children(recursive=True):
        _pin(child, engine_cores)
    _pin(this, front_cores)


def _pin(process: psutil.Process, cores: Iterable[int]) -> None:
    for thread in process.threads():
        try:
            os.sched_setaffinity(thread.id, cores)
        except ProcessLookupError:  # it has ended meanwhile
            continue


def processor_name() -> str:
    """The processor's model, as the machine calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else os.uname().machine

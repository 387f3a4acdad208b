"""Whether processes are gone, without having been their parent."""

import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

PATIENCE_S = 10.0


def has_ended(process: psutil.Process) -> bool:
    """Gone, or a zombie that nobody has taken notice of yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def children_named(pid: int, what: str) -> list[psutil.Process]:
    """Processes below another one by what they call themselves: Ray names its own by the actor that they are."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            found += [each] if what in " ".join(each.cmdline()) else []
    return found


def all_end(processes: Iterable[psutil.Process]) -> bool:
    """Whether they all end within the patience."""
    waited_for = list(processes)
    give_up_at_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not all(has_ended(process) for process in waited_for):
        if time.monotonic() > give_up_at_s:
            return False
        pause.wait(0.01)
    return True

"""How much of the machine somebody else used: the first question about any metric from a shared machine."""

import os
from contextlib import suppress

import psutil


class ForeignLoad:
    """Counts CPU time that neither a deployment nor this process spent, from its making on.

    What this process has started and waited for is its own; the deployment must not end meanwhile.

    Args:
        root_pid: The process that started the deployment; all that it has started is counted with it.
    """

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self._before = self._now()

    def fraction(self) -> float:
        """Share of all cores' time that other processes had, the hypervisor's other guests included."""
        total_s, busy_s, own_s = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return max(0.0, busy_s - own_s) / total_s if total_s > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        waited_for = os.times()
        children_s = waited_for.children_user + waited_for.children_system
        own_s = _cpu_s(os.getpid(), with_children=False) + children_s
        return total_s, total_s - idle_s, _cpu_s(self._root_pid) + own_s


def _cpu_s(pid: int, *, with_children: bool = True) -> float:
    seconds = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *(root.children(recursive=True) if with_children else ())):
            with suppress(psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system
                if with_children:  # those that have ended: replicas that were taken away
                    seconds += times.children_user + times.children_system
    return seconds

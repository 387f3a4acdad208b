"""How much of the machine somebody else used: the first question about any metric from a shared machine."""

import os
from contextlib import suppress

import psutil


class ForeignLoad:
    """Counts CPU time that neither a deployment nor this process spent, from its making on.

    What this process has started and waited for is its own. What the deployment has started is its own until it is
    gone, and counts with what it had at the last :meth:`look`: Ray waits for none of its processes, so nothing else
    remembers it. The deployment must not end meanwhile.

    Args:
        root_pid: The process that started the deployment; all that it has started is counted with it.
    """

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self._cpu_s_by_process: dict[tuple[int, float], float] = {}
        self._before = self._now()

    def look(self) -> bool:
        """Takes note of what the deployment's processes have had so far; always worth another look."""
        with suppress(psutil.Error):
            root = psutil.Process(self._root_pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    self._cpu_s_by_process[process.pid, process.create_time()] = _cpu_s(process)
        return True

    def fraction(self) -> float:
        """Share of all cores' time that other processes had, the hypervisor's other guests included."""
        total_s, busy_s, own_s = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return max(0.0, busy_s - own_s) / total_s if total_s > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        self.look()
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        waited_for = os.times()
        children_s = waited_for.children_user + waited_for.children_system
        own_s = _cpu_s(psutil.Process()) + children_s
        return total_s, total_s - idle_s, sum(self._cpu_s_by_process.values()) + own_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

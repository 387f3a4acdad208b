"""Where processor time goes while a system is under load: by kind of process, the client's beside them."""

from collections import defaultdict
from collections.abc import Mapping

import psutil

from loadtests.machine.pinning import name_of

CLIENT = "client"
"""The calling process."""


def cpu_s_by_process(root_pid: int) -> Mapping[str, float]:
    """Processor time so far of a process and all that it has started, by name, and of the calling process.

    Processes that end take their time with them: take the difference of two looks at a system that starts none.
    """
    found: defaultdict[str, float] = defaultdict(float)
    root = psutil.Process(root_pid)
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[name_of(process)] += times.user + times.system
    own = psutil.Process().cpu_times()
    found[CLIENT] = own.user + own.system
    return found


def ms_per_1k_tokens(before: Mapping[str, float], after: Mapping[str, float], tokens: int) -> dict[str, float]:
    """Milliseconds of a core for 1,000 tokens, by process; none that did not work."""
    spent_ms = {name: 1e3 * (after[name] - before.get(name, 0.0)) * 1e3 / tokens for name in after}
    return {name: ms for name, ms in sorted(spent_ms.items(), key=lambda item: -item[1]) if ms > 0}

"""Ends an engine's child processes when the process that started them is killed.

An engine core is a child process that does not notice its parent's SIGKILL: it would keep its memory and its cores for
ever, and the replica that takes its place would share the machine with a ghost. The guard is a small shell that waits
for the end of a pipe which the operating system closes when the parent dies, however it dies.
"""

import subprocess
from collections.abc import Sequence

_SCRIPT = 'read -r _; kill -9 "$@" 2>/dev/null'


class OrphanGuard:
    """Watches over child processes until ``release``.

    Args:
        pids: Processes to end when this one dies without having called ``release``.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "orphan-guard", *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The guard's own process id."""
        return self._shell.pid

    def release(self) -> None:
        """Ends the watch: the children are somebody else's business from here on."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()

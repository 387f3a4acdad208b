"""Real processes: a parent that starts a child and a guard, and is killed without a chance to clean up."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from engines.vllm.orphan_guard import OrphanGuard
from tests.process_watch import PATIENCE_S, all_end, has_ended

ROOT = Path(__file__).parents[3]
PARENT = """
import subprocess, sys, time
from engines.vllm.orphan_guard import OrphanGuard

children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
guard = OrphanGuard([child.pid for child in children])
if "release" in sys.argv:
    guard.release()
print(guard.pid, *(child.pid for child in children), flush=True)
sys.stdin.read()
"""


class Family:
    """A parent, its children and its guard.

    Args:
        parent: The process that started the others, and has told their ids.
    """

    def __init__(self, parent: "subprocess.Popen[str]") -> None:
        assert parent.stdout is not None
        self.parent = parent
        self.guard_pid, *pids = (int(word) for word in parent.stdout.readline().split())
        self.children = [psutil.Process(pid) for pid in pids]

    def kill_parent(self) -> None:
        self.parent.kill()
        self.parent.wait(PATIENCE_S)


@contextmanager
def a_family(*arguments: str) -> Iterator[Family]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with parent:
        try:
            yield Family(parent)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


@contextmanager
def a_child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        try:
            yield child
        finally:
            child.kill()


def test_children_of_a_killed_parent_are_ended() -> None:
    with a_family() as family:
        assert not any(has_ended(child) for child in family.children)

        family.kill_parent()

        assert all_end(family.children)


def test_the_guard_ends_with_its_work() -> None:
    with a_family() as family:
        guard = psutil.Process(family.guard_pid)

        family.kill_parent()

        assert all_end([guard])


def test_a_released_guard_is_gone_and_leaves_the_children_alone() -> None:
    with a_family("release") as family:
        assert not psutil.pid_exists(family.guard_pid)

        family.kill_parent()

        assert not any(has_ended(child) for child in family.children)


def test_a_guard_does_nothing_while_its_parent_lives() -> None:
    with a_child() as child:
        guard = OrphanGuard([child.pid])
        try:
            assert psutil.Process(guard.pid).is_running()
            assert child.poll() is None
        finally:
            guard.release()
        assert child.poll() is None


def test_a_child_that_has_gone_already_does_not_save_the_others() -> None:
    with a_child() as gone:
        pass
    with a_child() as child:
        guard = OrphanGuard([gone.pid, child.pid])
        assert guard._shell.stdin is not None

        guard._shell.stdin.close()  # what the operating system does when the parent dies

        assert child.wait(PATIENCE_S) == -signal.SIGKILL
        guard.release()

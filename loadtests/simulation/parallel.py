"""Simulations in other processes, one for each core as a rule, with a bar."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from types import ModuleType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from cluster.clock import MonotonicClock

Planned = TypeVar("Planned")
Found = TypeVar("Found")


def _one(_: object) -> str:
    return ""


def simulate_all(
    runs: Sequence[Planned],
    simulate: Callable[[Planned], Found],
    jobs: int,
    console: Console,
    part_of: Callable[[Planned], str] = _one,
) -> list[Found]:
    """Makes every run, in other processes when there are several jobs.

    Args:
        runs: What.
        simulate: Makes one of them; importable by name where there are several jobs.
        jobs: Processes at a time.
        console: Shows progress: a bar where it is a terminal, and a line for each of several parts that
            has ended where it is not.
        part_of: Names the part that a run belongs to; without it all are one.

    Returns:
        What each run came to, in their order.

    Raises:
        BrokenProcessPool: A process died.
    """
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
    found: dict[int, Found] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=len(runs))
        parts = _Parts([part_of(each) for each in runs])
        for number, result in _as_they_end(runs, simulate, min(jobs, len(runs))):
            found[number] = result
            progress.advance(task)
            line = parts.end_of_one(part_of(runs[number]))
            if line and not console.is_terminal:
                console.print(Text(line))
    return [found[number] for number in range(len(runs))]


class _Parts:
    """Which parts have ended.

    Args:
        names: The part of each run; where all are one it has no line.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._num_runs, self._missing = Counter(names), Counter(names)
        self._clock = MonotonicClock()
        self._began_s = self._clock.now_s()

    def end_of_one(self, name: str) -> str:
        """A run has ended. What there is to say, once it was the last of its part."""
        self._missing[name] -= 1
        if len(self._missing) == 1 or self._missing[name]:
            return ""
        number = sum(not missing for missing in self._missing.values())
        elapsed_s = self._clock.now_s() - self._began_s
        width = max(map(len, self._num_runs))
        return (
            f"{number:3} of {len(self._missing)}  {name:{width}}  {self._num_runs[name]:3} runs, at {elapsed_s:5.0f} s"
        )


def _as_they_end(
    runs: Sequence[Planned], simulate: Callable[[Planned], Found], jobs: int
) -> Iterator[tuple[int, Found]]:
    if jobs <= 1:
        for number, each in enumerate(runs):
            yield number, simulate(each)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            with _without_main():
                numbers = {pool.submit(simulate, each): number for number, each in enumerate(runs)}
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BaseException:  # the other runs are of no use any more, and may take minutes
            for worker in active_children():
                worker.terminate()
            raise


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start meanwhile import what they need by name, and not the user's script once more: without
    ``if __name__ == "__main__"`` in it, that would begin everything anew in each of them.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script

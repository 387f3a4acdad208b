"""Simulations in other processes, one for each core as a rule, with a bar."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from types import ModuleType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Planned = TypeVar("Planned")
Found = TypeVar("Found")


def simulate_all(
    runs: Sequence[Planned], simulate: Callable[[Planned], Found], jobs: int, console: Console
) -> list[Found]:
    """Makes every run, in other processes when there are several jobs.

    Args:
        runs: What.
        simulate: Makes one of them; importable by name where there are several jobs.
        jobs: Processes at a time.
        console: Shows progress when it is a terminal.

    Returns:
        What each run came to, in their order.

    Raises:
        BrokenProcessPool: A process died.
    """
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
    found: dict[int, Found] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=len(runs))
        for number, result in _as_they_end(runs, simulate, min(jobs, len(runs))):
            found[number] = result
            progress.advance(task)
    return [found[number] for number in range(len(runs))]


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

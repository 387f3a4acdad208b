"""A progress bar of long work on a deployment, which tells what each step is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[str], None]
"""Says what begins, once for each step."""


@contextmanager
def told_steps(console: Console, num_steps: int) -> Iterator[Tell]:
    """A bar of so many steps; where nothing can be drawn, a line for each."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=num_steps, completed=-1)

        def tell(line: str) -> None:
            progress.update(task, advance=1, description=line)
            if not console.is_terminal:
                console.print(line, highlight=False, markup=False)

        yield tell
        progress.update(task, completed=num_steps, description="done")

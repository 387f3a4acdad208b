"""A table of cases that are judged in one test; what fails says which row it was."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def for_each(names: str | tuple[str, ...], rows: Iterable[Any], ids: Iterable[str] | None = None) -> Callable[..., Any]:
    """Like ``pytest.mark.parametrize``, as one item.

    Fixtures are set up once for the whole table: a test that leaves something behind in them is parametrized instead.
    """
    columns = (names,) if isinstance(names, str) else names
    rows = list(rows)
    labels = list(ids or map(repr, rows))
    cases = [dict(zip(columns, (row,) if isinstance(names, str) else row, strict=True)) for row in rows]
    labelled = list(zip(labels, cases, strict=True))
    assert labelled, "a table without rows proves nothing"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        async def judge_awaiting(*args: Any, **fixtures: Any) -> None:
            for label, case in labelled:
                with _named(label):
                    await test(*args, **fixtures, **case)

        def judge(*args: Any, **fixtures: Any) -> None:
            for label, case in labelled:
                with _named(label):
                    test(*args, **fixtures, **case)

        judged = functools.wraps(test)(judge_awaiting if inspect.iscoroutinefunction(test) else judge)
        signature = inspect.signature(test)
        fixtures = [each for name, each in signature.parameters.items() if name not in columns]
        vars(judged)["__signature__"] = signature.replace(parameters=fixtures)
        return judged

    return decorate


@contextmanager
def _named(label: str) -> Iterator[None]:
    """Adds its row to whatever goes wrong."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {label}")
        raise

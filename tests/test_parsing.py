"""A parse of Python's own source is not disturbed by another one in the middle of it."""

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def parses_in_collections() -> Iterator[None]:
    """A parse at the beginning of every collection, and a collection every few objects."""

    def parse(phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            ast.parse("1")

    threshold = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(50, 10, 10)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(parse)


@pytest.mark.usefixtures("parses_in_collections")
def test_a_parse_that_a_collection_would_begin_in_the_middle_of_another_disturbs_neither() -> None:
    assert len(ast.parse(Path(ast.__file__).read_text("utf-8")).body) > 10

"""The architecture page draws the states as the tables have them, and only a request's own class writes its fields."""

import ast
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import pytest

from routing.request.request import Attempt, Request
from routing.request.states import ANSWER_TRANSITIONS, ATTEMPT_TRANSITIONS, REQUEST_TRANSITIONS
from tests.architecture.test_rooms import ROOT, modules, parsed

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
FIELDS = {*Request.__struct_fields__, *Attempt.__struct_fields__}
ROOMS = ("routing/dispatcher.py", "routing/attempts/", "routing/queues/", "routing/intake/")


def arrows(transitions: Mapping[tuple[StrEnum, StrEnum], StrEnum]) -> Iterator[str]:
    """One arrow from a state to the next, named after the steps that lead there."""
    steps: dict[tuple[str, str], list[str]] = {}
    for (state, step), following in transitions.items():
        steps.setdefault((state.name, following.name), []).append(step.value)
    first = next(iter(transitions))[0].name
    yield f"    [*] --> {first}"
    for (source, target), names in steps.items():
        yield f"    {source} --> {target}: {', '.join(names)}"


@pytest.mark.parametrize(
    "transitions", [REQUEST_TRANSITIONS, ANSWER_TRANSITIONS, ATTEMPT_TRANSITIONS], ids=["request", "answer", "attempt"]
)
def test_the_page_has_every_arrow_and_no_other(transitions: Any) -> None:
    drawn = "\n".join(["```mermaid", "stateDiagram-v2", *arrows(transitions), "```"])

    assert drawn in PAGE.read_text(encoding="utf-8")


def written(name: str, tree: ast.Module) -> Iterator[str]:
    """Every field of something else that a module assigns to."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store) or node.attr not in FIELDS:
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield f"{name}:{node.lineno} {ast.unparse(node)}"


def test_nobody_else_writes_a_requests_fields_or_an_attempts() -> None:
    found = [each for name, path in modules() if name.startswith(ROOMS) for each in written(name, parsed(path))]

    assert found == []


def test_a_planted_write_is_found() -> None:
    planted = ast.parse(
        "def f(request, attempt):\n    request.answer = 1\n    attempt.state, x = 2, 3\n    self.stage = 4"
    )

    assert list(written("planted.py", planted)) == ["planted.py:2 request.answer", "planted.py:3 attempt.state"]

"""``docs/reference`` says what the code says."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.config import ROOT
from deployments.reference.__main__ import FOLDER, PAGES, main
from deployments.reference.api import REASONS
from deployments.reference.configuration import SECTIONS_OF_ARGS
from deployments.reference.docstrings import args_of, summary_of
from deployments.reference.markdown import from_docstring, table
from deployments.reference.policies import MORE, NEEDS, questions
from deployments.reference.schemas import Schema
from policies.contracts import Need
from policies.decisions import Reason


def error_codes() -> Iterator[str]:
    """Codes that are written down where an ``ApiError`` is made."""
    for path in sorted((ROOT / "deployments").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("ApiError", "invalid")
            ):
                said = [*node.args[2:3], *(each.value for each in node.keywords if each.arg == "code")]
                yield from (
                    each.value for each in said if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_make_reference_would_write(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run `make reference`"


def test_every_page_is_written(tmp_path: Path) -> None:
    assert main(["--folder", str(tmp_path)]) == 0
    assert {each.name for each in tmp_path.iterdir()} == set(PAGES)


@pytest.mark.parametrize("model", [model for _, model in SECTIONS_OF_ARGS], ids=lambda model: model.__name__)
def test_every_field_of_the_configuration_is_explained(model: type) -> None:
    assert [row[0] for row in Schema(model).rows() if not row[-1]] == []


def test_every_code_and_reason_is_explained() -> None:
    assert set(REASONS) == set(Reason)
    page = PAGES["api.md"]()
    assert [each for each in error_codes() if f"`{each}`" not in page] == []


def test_every_question_and_need_is_explained() -> None:
    assert set(NEEDS) == set(Need)
    assert {each.name for each in questions()} == set(MORE)


def test_every_parameter_of_a_policy_is_explained() -> None:
    rows = [line for line in PAGES["policies.md"]().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []


def test_what_a_docstring_says_is_found() -> None:
    def thing() -> None:
        """What it is.

        More of it.

        Args:
            first: One line.
            second: One line, and
                another.

        Raises:
            third: Not an argument.
        """

    assert summary_of(thing) == "What it is."
    assert {name: from_docstring(text) for name, text in args_of(thing).items()} == {
        "first": "One line.",
        "second": "One line, and another.",
    }


def test_a_table_keeps_bars_out_of_its_cells() -> None:
    assert table(("a", "b"), [("x|y", "")]) == "| a | b |\n|---|---|\n| x\\|y |  |"

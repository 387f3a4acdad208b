"""Figures of capacity plans: what is told, and what its formula gives."""

import ast
import math
import re
from pathlib import Path

import pytest

from loadtests.plan.__main__ import main
from loadtests.plan.figures import Figure, Group, WorkedFigure, read_figures, worked_out
from loadtests.plan.formulas import FUNCTIONS
from policies.errors import ConfigError
from tests.tables import for_each

PAGE = Path(__file__).parents[3] / "docs/how-to/capacity.md"
FIGURES = {each.figure.name: each for group in read_figures() for each in worked_out(group)}


@for_each("name", list(FIGURES))
def test_each_figure_that_comes_along_is_what_is_told(name: str) -> None:
    assert FIGURES[name].is_as_said
    assert (FIGURES[name].figure.instead is None) is math.isnan(FIGURES[name].instead_value)


@for_each("group", read_figures())
def test_no_input_stands_for_nothing(group: Group) -> None:
    formulas = [each.formula for each in group.figures]
    formulas += [each.instead.formula for each in group.figures if each.instead is not None]
    used = {node.id for each in formulas for node in ast.walk(ast.parse(each)) if isinstance(node, ast.Name)}
    assert set(group.inputs) <= used


@for_each(
    ("value", "said", "is_as_said"),
    [(0.5395, "0.54", True), (15.3506, "15.3", True), (15.3506, "15.4", True), (15.3506, "15", True),
     (2_197_265.6, "2.2e6", True), (0.1204, "0.120", True), (0.1194, "0.120", False), (9268.1, "9259", False),
     (math.inf, "2", False), (1e30, "0.01", False)],
)  # fmt: skip
def test_as_many_digits_count_as_are_told(value: float, said: str, is_as_said: bool) -> None:
    figure = Figure.model_validate({"name": "x", "formula": "1", "said": said})
    assert WorkedFigure(figure=figure, value=value).is_as_said is is_as_said


@for_each(
    "formula",
    [
        "rate + 1",
        "1 / 0",
        "ln(",
        "ln('x')",
        "().__class__",
        "open('x')",
        "a = 1",
        "'5'",
        "erlang_c(1.5, 1) + mean_response_s(1, 1, 1.5)",
        "mean_response_s(-5, 1, 1)",
        "response_quantile_s(1, 0.5, 1, 2)",
        "replicas_for(1e9, 1, 5, 0.99)",
        "-" * 5000 + "1",
    ],
)
def test_a_formula_that_can_not_be_worked_out_is_named(formula: str) -> None:
    group = Group.model_validate({"name": "g", "inputs": {"n": 1}, "figures": [{"name": "x", "formula": formula}]})
    with pytest.raises(ConfigError) as error:
        list(worked_out(group))
    assert (error.value.field, error.value.value) == ("x", formula)


def test_the_table_shows_every_figure_with_its_formula_and_what_holds_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["figures"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in FIGURES)
    assert f"{len(FIGURES)} figures; not as told: none" in shown


def test_a_figure_that_is_not_what_is_told_ends_with_1_and_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("version: 1\ngroups: [{name: Mine, figures: [{name: five, formula: 2 + 2, said: '5'}]}]\n")
    assert main(["figures", str(mine)]) == 1
    assert "not as told: five" in capsys.readouterr().out


def test_a_file_that_can_not_be_used_ends_with_2_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figures", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in "".join(capsys.readouterr().err.split())


def test_the_file_that_the_documentation_shows_is_right(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    mine = tmp_path / "mine.yaml"
    mine.write_text(shown)
    assert main(["figures", str(mine)]) == 0


def test_the_documentation_names_every_function_of_queues() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}(" in page for name in set(FUNCTIONS) - {"ln", "ceil", "floor", "round", "max"})


def test_a_name_stands_for_one_number() -> None:
    for names in (["x", "x"], ["x", "max"], ["n"]):
        figures = [{"name": each, "formula": "1"} for each in names]
        with pytest.raises(ConfigError, match="names that are used once"):
            Group.model_validate({"name": "g", "inputs": {"n": 1}, "figures": figures})


def test_words_in_brackets_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    figures = "[{name: '[/x]', formula: '2', assumes: '[/bold] [1]'}]"
    mine.write_text(f"version: 1\ngroups: [{{name: Mine, figures: {figures}}}]\n")
    assert main(["figures", str(mine)]) == 0
    assert "[/bold] [1]" in capsys.readouterr().out

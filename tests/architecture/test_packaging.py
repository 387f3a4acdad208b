"""The packages have generic names, so where they come from and what is in them is tested."""

import ast
import importlib.util
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.tables import for_each

ROOT = Path(__file__).parents[2]
TOP_LEVEL = ("cluster", "deployments", "engines", "loadtests", "policies", "routing")
CONFIGURED = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
)


def packages_on_disk() -> Iterator[str]:
    for top in TOP_LEVEL:
        for init in sorted((ROOT / top).rglob("__init__.py")):
            yield ".".join(init.parent.relative_to(ROOT).parts)


def modules_on_disk() -> list[Path]:
    return sorted(each for top in TOP_LEVEL for each in (ROOT / top).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse_init(package: str) -> ast.Module:
    return ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))


def imported_names(module: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name
        for statement in module.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def exported_names(module: ast.Module) -> list[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    return []


def constants_then_classes_then_functions(name: str) -> tuple[int, str]:
    """The order in which ruff sorts ``__all__``."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@for_each("package", [*TOP_LEVEL, "tests"])
def test_a_top_level_package_is_ours_and_not_another_wheels(package: str) -> None:
    spec = importlib.util.find_spec(package)

    assert spec is not None
    assert spec.origin is not None, "a namespace package loses to any regular one"
    assert Path(spec.origin) == ROOT / package / "__init__.py"


def test_setuptools_is_told_of_every_package() -> None:
    assert sorted(CONFIGURED) == sorted(packages_on_disk())


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {relative(each.parent).replace("/", ".") for each in modules_on_disk()}

    assert folders == set(packages_on_disk())


@for_each("package", CONFIGURED)
def test_a_package_says_what_it_is_for(package: str) -> None:
    assert ast.get_docstring(parse_init(package))


@for_each("package", CONFIGURED)
def test_a_package_exports_what_it_imports_in_order_and_nothing_else(package: str) -> None:
    module = parse_init(package)
    exported = exported_names(module)

    assert set(exported) == imported_names(module)
    assert exported == sorted(exported, key=constants_then_classes_then_functions)


@for_each("package", CONFIGURED)
def test_an_init_file_has_no_code_of_its_own(package: str) -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)

    assert all(isinstance(each, allowed) for each in parse_init(package).body)


def test_no_file_is_named_after_nothing_in_particular() -> None:
    vague = [relative(each) for each in modules_on_disk() if each.stem in {"utils", "helpers"}]

    assert vague == []

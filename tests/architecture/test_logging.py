"""Log records may be kept for long, with all that they are made of."""

import ast
from collections.abc import Iterator
from pathlib import Path

from deployments.config import ROOT

PACKAGES = ("policies", "routing", "engines", "cluster", "deployments")


def exceptions_in_records(path: Path) -> Iterator[str]:
    """Calls of a logger, where an exception is caught, that have the exception itself among their arguments."""
    for handler in ast.walk(ast.parse(path.read_text())):
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            for call in ast.walk(handler):
                if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("LOGGER."):
                    names = [each.id for each in call.args if isinstance(each, ast.Name)]
                    if handler.name in names:
                        yield f"{path.relative_to(ROOT)}:{call.lineno}"


def test_no_log_record_keeps_an_exception_and_what_its_traceback_holds() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]

    assert [found for path in paths for found in exceptions_in_records(path)] == []

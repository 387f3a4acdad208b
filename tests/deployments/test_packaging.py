import importlib
from types import ModuleType

import pytest

from deployments.config import ROOT
from deployments.packaging import PACKAGES, check_single_root
from tests.deployments.app_args import error_of


def replace(monkeypatch: pytest.MonkeyPatch, name: str, file: str | None) -> None:
    """Another distribution's package of the same name is found first."""
    foreign = ModuleType(name)
    foreign.__file__ = file
    found = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda each: foreign if each == name else found(each))


def test_every_package_comes_from_one_folder() -> None:
    check_single_root()


def test_every_package_that_a_replica_needs_is_checked() -> None:
    tops = {each.parent.name for each in ROOT.glob("*/__init__.py")}
    assert tops - {"tests", "loadtests"} == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("file", ["/usr/lib/python3/{}/__init__.py", None], ids=["elsewhere", "no_file"])
def test_a_package_from_elsewhere_is_named(monkeypatch: pytest.MonkeyPatch, name: str, file: str | None) -> None:
    where = file and file.format(name)
    replace(monkeypatch, name, where)
    error = error_of(check_single_root)
    assert (error.field, error.value) == (f"package {name}", where)
    assert str(ROOT) in error.allowed

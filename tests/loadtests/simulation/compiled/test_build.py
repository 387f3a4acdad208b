"""The compiled simulator gives the same results, and never hides a source that was edited."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.simulation.compiled.build import (
    MODULES,
    PACKAGES,
    ROOT,
    CompilationFailed,
    compiled,
    import_path,
    sources_hash,
)
from tests.determinism.simulated_run import log_hash
from tests.tables import for_each

pytestmark = pytest.mark.timeout(900)  # the simulator is compiled first: beside other work that takes minutes

OF_ALL_KINDS = (
    "replica-crash",
    "critical-first",
    "degraded",
    "eject-slow-replica",
    "fair-tenants",
    "hedge-tied",
    "kv-events",
    "ragged-lanes",
    "prefix-affinity",
    "shed-sessions",
)
"""Scenarios that between them go through most of what is compiled."""
_STAYS = "native_class=False"
BUILT_IN_BASES = {"list", "dict", "set", "tuple", "str", "int", "float"}


@pytest.fixture(scope="module")
def folder() -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return compiled()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@for_each("balancing", ["least_work_left", "power_of_two"])
def test_compiled_gateways_are_told_and_answer_the_same_byte_for_byte(folder: Path, balancing: str) -> None:
    assert _python(folder, "-m", "tests.determinism.simulated_run", balancing) == log_hash(balancing)


def test_what_is_meant_to_be_compiled_is(folder: Path) -> None:
    names = [module.removesuffix(".py").replace("/", ".") for module in MODULES]
    program = f"import importlib; print(*(importlib.import_module(name).__file__ for name in {names}), sep='\\n')"

    files = [Path(line) for line in _python(folder, "-c", program).splitlines()]

    assert len(files) == len(MODULES)
    assert [each for each in files if not each.is_relative_to(folder) or each.suffix == ".py"] == []


def test_run_sim_reports_the_same_metrics_compiled_and_interpreted(folder: Path, tmp_path: Path) -> None:
    metrics = []
    for options in ([], ["--compiled"]):
        file = tmp_path / f"{len(options)}.json"
        command = ["-m", "loadtests.run_sim", *OF_ALL_KINDS, "--duration", "60", "--seeds", "1", *options]
        subprocess.run(
            [sys.executable, *command, "--json", str(file)], cwd=ROOT, capture_output=True, check=False, timeout=300
        )
        metrics.append(json.loads(file.read_text(encoding="utf-8"), object_hook=_without_wall_time)["scenarios"])

    assert len(metrics[0]) == len(OF_ALL_KINDS)
    assert metrics[0] == metrics[1]


def test_an_edited_source_has_another_name_than_what_was_compiled_before(sources: Path) -> None:
    before = sources_hash(sources)

    for module in (
        "engines/model/batching.py",
        "policies/balancing/least_work_left.py",
        "loadtests/scenarios/steady.yaml",
    ):
        with (sources / module).open("a", encoding="utf-8") as file:
            file.write("# edited\n")
        assert sources_hash(sources) != before
        before = sources_hash(sources)


def test_a_copy_is_named_after_its_content_wherever_it_lies(sources: Path) -> None:
    assert sources_hash(sources) == sources_hash(ROOT)


def test_no_extension_module_lies_beside_the_sources(folder: Path) -> None:
    beside = [each for package in PACKAGES for each in (ROOT / package).rglob("*") if each.suffix in {".so", ".pyd"}]

    assert beside == []


def test_a_record_that_is_not_known_is_said_by_its_module(sources: Path) -> None:
    with (sources / "routing/request/events.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass Late(msgspec.Struct, order=True):\n    at_s: float\n")

    with pytest.raises(CompilationFailed, match=r"routing/request/events.py: Late: order=True, which"):
        compiled(sources)

    assert list((sources / ".run/compiled").iterdir()) == []


def test_what_does_not_compile_is_said_and_leaves_nothing_behind(folder: Path, sources: Path) -> None:
    (sources / "cluster/pacing.py").write_text(
        "def flush_pause_s() -> int:\n    return 'no number'\n", encoding="utf-8"
    )

    with pytest.raises(CompilationFailed, match="error: Incompatible return value type"):
        compiled(sources)

    assert list((sources / ".run/compiled").iterdir()) == []


@for_each("module", MODULES)
def test_no_compiled_class_is_one_that_mypyc_makes_something_else_of(folder: Path, module: str) -> None:
    """It drops a class's keywords without a word, and can't extend a built-in type."""
    tree = ast.parse((folder / module).read_text("utf-8"))
    native = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and _STAYS not in ast.unparse(each)]

    for each in native:
        assert not each.keywords, each.name
        assert not BUILT_IN_BASES & {ast.unparse(base) for base in each.bases}, each.name


def test_a_native_record_is_copied_whole_or_not_at_all(folder: Path) -> None:
    program = """if True:
        import pickle
        from policies.views import Geometry
        from routing.request.events import AttemptFinished
        for record in (Geometry(prefill_s=2.0), AttemptFinished(attempt_id="1", output_tokens=1)):
            try:
                print(pickle.loads(pickle.dumps(record)) == record)
            except TypeError as error:
                print(error)
    """

    whole, refused = _python(folder, "-c", program).splitlines()

    assert whole == "True"
    assert "missing required" in refused


def _without_wall_time(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "wall_s"}


def _python(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": import_path(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout.strip()

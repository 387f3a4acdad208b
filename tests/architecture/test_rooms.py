"""A room is a folder of modules: few enough to be seen at once, each about one thing."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP_LEVEL = ("cluster", "deployments", "engines", "loadtests", "policies", "routing")
CATALOGUES = frozenset({"policies/admission", "policies/balancing", "policies/shedding"})
"""One policy for each file, and as many as there are."""
VOCABULARIES = frozenset(
    {
        "cluster/event_log/frames.py",
        "deployments/config.py",
        "deployments/data_plane/messages.py",
        "deployments/openai/errors.py",
        "deployments/openai/responses.py",
        "engines/contract.py",
        "engines/model/messages.py",
        "loadtests/workloads/arrivals.py",
        "loadtests/workloads/lengths.py",
        "policies/contracts.py",
        "policies/decisions.py",
        "policies/errors.py",
        "policies/signals.py",
        "policies/views.py",
        "routing/request/effects.py",
        "routing/request/events.py",
    }
)
"""Modules that are lists of kinds: whoever reads one kind reads the next."""
MAX_FILES, MAX_PUBLIC_NAMES, MAX_FUNCTION_LINES, MAX_POLICY_LINES = 12, 7, 40, 150

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[str, Path]]:
    for top in TOP_LEVEL:
        for path in sorted((ROOT / top).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_a_room_has_no_more_than_a_dozen_modules() -> None:
    rooms: dict[str, list[str]] = {}
    for name, path in modules():
        if path.name not in {"__init__.py", "__main__.py"}:
            rooms.setdefault(name.rpartition("/")[0], []).append(path.name)

    crowded = {room: files for room, files in rooms.items() if len(files) > MAX_FILES and room not in CATALOGUES}

    assert crowded == {}


def test_a_module_has_no_more_public_names_than_can_be_kept_in_mind() -> None:
    crowded = {}
    for name, path in modules():
        public = [each.name for each in parsed(path).body if isinstance(each, Definition) and each.name[0] != "_"]
        if len(public) > MAX_PUBLIC_NAMES and name not in VOCABULARIES:
            crowded[name] = public

    assert crowded == {}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{name}:{each.lineno} {each.name}"
        for name, path in modules()
        for each in ast.walk(parsed(path))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and (each.end_lineno or 0) - each.lineno + 1 > MAX_FUNCTION_LINES
    ]

    assert long == []


def test_a_policy_fits_on_three_screens() -> None:
    long = [
        name
        for name, path in modules()
        if name.startswith("policies/") and name.count("/") == 2
        if len(path.read_text(encoding="utf-8").splitlines()) > MAX_POLICY_LINES
    ]

    assert long == []


def test_every_vocabulary_is_there() -> None:
    assert {name for name in VOCABULARIES if not (ROOT / name).is_file()} == set()


def test_the_readme_has_a_line_for_every_room() -> None:
    rooms = {name.rpartition("/")[0] for name, _ in modules()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    subrooms = {room for room in rooms if room.count("/") == 1 and not room.startswith("policies/")}

    missing = {room for room in subrooms if f"`{room.partition('/')[2]}/`" not in readme}
    missing |= {top for top in TOP_LEVEL if f"**`{top}/`**" not in readme}

    assert missing == set()


def test_a_package_says_what_each_of_its_rooms_is_for() -> None:
    rooms = {name.split("/")[0] + "/" + name.split("/")[1] for name, _ in modules() if name.count("/") == 2}
    docstrings = {top: ast.get_docstring(parsed(ROOT / top / "__init__.py")) or "" for top in TOP_LEVEL}

    missing = {room for room in rooms if f"    {room.split('/')[1]}: " not in docstrings[room.split("/")[0]]}

    assert {room for room in missing if not room.startswith("policies/")} == set()

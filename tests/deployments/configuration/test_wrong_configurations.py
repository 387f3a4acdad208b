"""What a platform engineer mistypes, and the one line that comes out before anything starts."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.launch import CONFIGS, main
from tests.tables import for_each

PLACES = {"APP": "applications.0", "ARGS": "applications.0.args", "POOL": "applications.0.args.pools.0"}
"""What rows call places that many of them begin with."""
ROWS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("wrong_configurations.yaml").read_text())
EMULATED = (CONFIGS / "emulated.yaml").read_text()
TEXTS = {
    "": " (it is empty)",
    "[proxy_location]": " (it holds no mapping)",
    EMULATED.replace("      model:", "\tmodel:"): (
        ", as YAML (found character '\\t' that cannot start any token in line 15, column 1)"
    ),
    EMULATED + "proxy_location: Disabled": ", as YAML (the key 'proxy_location' stands twice in line 33, column 1)",
    EMULATED.replace("kind: emulated", "kind: emulated: 1"): (
        ", as YAML (mapping values are not allowed here in line 19, column 23)"
    ),
    EMULATED.replace(
        "speed: 1.0", "speed: !!python/name:os.system"
    ): ", as YAML (could not determine a constructor for",
    "applications: [": ", as YAML (expected the node content",
    "applications: [{args: &args {x: *args}}]": ", as YAML (it is within itself)",
    "since: 2026-02-31": ", as YAML (day is out of range for month)",
    b"\xff\xfe\x00": " ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)",
}
"""What is in a file that is no configuration, and the end of the line that says so."""


def changed(row: dict[str, Any]) -> str:
    """The file's text."""
    document = yaml.safe_load((CONFIGS / f"{row['in']}.yaml").read_text())
    ((place, value),) = row.get("put", {row.get("take_out"): None}).items()
    first, _, rest = place.partition(".")
    *way, last = filter(None, (*PLACES.get(first, first).split("."), *rest.split(".")))
    part: Any = document
    for name in way:
        part = part[int(name)] if isinstance(part, list) else part.setdefault(name, {})
    last = int(last) if isinstance(part, list) else last
    if "put" in row:
        part[last] = value
    else:
        del part[last]
    return yaml.safe_dump(document, sort_keys=False)


def said_of(content: bytes, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What the launcher has against a file."""
    path = folder / "wrong.yaml"
    path.write_bytes(content)
    assert main([str(path), *options]) == 2
    captured = capsys.readouterr()
    assert not captured.err
    return captured.out.replace(str(path), "FILE")


def is_one_clear_line(said: str) -> bool:
    """Whether it names the field, the value and what is allowed, and nothing of what has found it."""
    if said.count("\n") != 1:
        return False
    field, got, rest = said.partition(": got ")
    value, allowed, what = rest.partition("; allowed: ")
    is_leaky = any(each in said for each in ("Traceback", "errors.pydantic.dev", "validation error", "Value error"))
    return bool(field and got and value and allowed and what.strip()) and said.endswith("\n") and not is_leaky


@for_each("row", ROWS)
def test_a_wrong_value_is_said_in_one_line_with_its_place_and_what_is_allowed(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(logging._nameToLevel, "TRACE", raising=False)  # uvicorn's, where a test has started it
    said = said_of(changed(row).encode(), tmp_path, capsys, "--check")
    assert is_one_clear_line(said), said
    message = row["says"]
    if message.endswith("..."):
        assert said.startswith(message.removesuffix("..."))
    else:
        assert said == f"{message}\n"


@for_each(("text", "why"), TEXTS.items())
def test_a_file_that_is_no_configuration_is_named_and_where_it_goes_wrong(
    text: str | bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_of(text if isinstance(text, bytes) else text.encode(), tmp_path, capsys, "--check")
    assert is_one_clear_line(said), said
    assert said.startswith(f"config: got 'FILE'; allowed: a Serve configuration with applications and args{why}")


@for_each(("change", "field"), [({"name": "other"}, "route_prefix"), ({"route_prefix": "/other"}, "name")])
def test_two_applications_share_neither_name_nor_route(
    change: dict[str, str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(EMULATED)
    (first,) = document["applications"]
    document["applications"] = [first, {**first, **change}]
    said = said_of(yaml.safe_dump(document).encode(), tmp_path, capsys, "--check")
    assert said == f"applications.1.{field}: got {first[field]!r}; allowed: each application's own\n"


def test_a_wrong_configuration_is_refused_by_the_launcher_as_by_its_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = changed(ROWS[0]).encode()
    assert said_of(wrong, tmp_path, capsys) == said_of(wrong, tmp_path, capsys, "--check")


def test_there_are_as_many_as_promised_and_each_begins_with_what_can_be_served() -> None:
    assert len(ROWS) >= 60
    assert len({changed(each) for each in ROWS}) == len(ROWS)
    for config in {each["in"] for each in ROWS}:
        assert main([str(CONFIGS / f"{config}.yaml"), "--check"]) == 0

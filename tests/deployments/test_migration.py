"""``python -m deployments.config migrate FILE`` rewrites old names in place."""

from pathlib import Path

import pytest

from deployments.migration import main

BEFORE = """\
# who waits
applications:
  - name: chat
    args:
      gateway: {ledger: true, suspect_s: 5}   # ledger: as it was
      policies: {hedging: {name: stretch, params: {max_stretch: 3}}}
    deployments:
      - name: gateway
        user_config: {gateway: {suspect_s: 4}}
"""
AFTER = """\
# who waits
applications:
  - name: chat
    args:
      gateway: {load_coordinator: true, quarantine_s: 5}   # ledger: as it was
      policies: {hedging: {name: slowdown, params: {max_slowdown: 3}}}
    deployments:
      - name: gateway
        user_config: {gateway: {quarantine_s: 4}}
"""


def test_old_names_are_rewritten_and_comments_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(BEFORE)

    assert main(["migrate", str(path)]) == 0

    assert path.read_text() == AFTER
    changes = capsys.readouterr().out.splitlines()
    assert [each.partition(":")[0] for each in changes] == ["line 5", "line 6", "line 9"]


def test_a_file_without_old_names_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(AFTER)
    assert main(["migrate", str(path)]) == 0
    assert path.read_text() == AFTER
    assert "nothing to change" in capsys.readouterr().out


def test_what_cannot_be_rewritten_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    text = 'policies: {hedging: "stretch"}\n'
    path.write_text(text)
    assert main(["migrate", str(path)]) == 1
    assert path.read_text() == text
    said = capsys.readouterr().err
    assert "lines: got [1]" in said
    assert "by hand" in said


@pytest.mark.parametrize("text", [None, "a: [1"])
def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    assert main(["migrate", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_ends_of_lines_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_bytes(b"policies:\r\n  hedging: stretch\r\n")
    assert main(["migrate", str(path)]) == 0
    assert path.read_bytes() == b"policies:\r\n  hedging: slowdown\r\n"

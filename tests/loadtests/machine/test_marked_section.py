from pathlib import Path

import pytest

from loadtests.machine.marked_section import write_between_marks


def test_what_people_have_written_around_the_metrics_stays(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- lanes -->\nold\n<!-- /lanes -->\nafter\n<!-- metrics --><!-- /metrics -->\n")

    write_between_marks(document, "lanes", "new\n")

    written = "before\n<!-- lanes -->\nnew\n<!-- /lanes -->\nafter\n<!-- metrics --><!-- /metrics -->\n"
    assert document.read_text() == written


@pytest.mark.parametrize("text", ["no checks", "<!-- /lanes --><!-- lanes -->", "<!-- lanes -->"])
def test_a_document_without_both_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    document = tmp_path / "page.md"
    document.write_text(text)

    with pytest.raises(ValueError, match="must both be there"):
        write_between_marks(document, "lanes", "new")
    assert document.read_text() == text

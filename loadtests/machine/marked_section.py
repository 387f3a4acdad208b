"""Figures inside a document, between two marks that readers don't see: ``<!-- name -->`` and ``<!-- /name -->``."""

from pathlib import Path


def write_between_marks(path: Path, name: str, content: str) -> None:
    """Replaces what stands between the two marks of a document.

    Raises:
        ValueError: The document does not have both marks, in order.
    """
    begin_mark, end_mark = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin, rest = path.read_text().partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise ValueError(f"{path}: {begin_mark} and {end_mark} must both be there")
    path.write_text(f"{before}{begin_mark}\n{content.strip()}\n{end_mark}{after}")

"""Markdown of plain data and of docstrings."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOTICE = "<!-- Written by `make reference`. Change the code that it describes, and run that. -->"


def page(title: str, *parts: str) -> str:
    """A whole page; parts are paragraphs, headings and tables."""
    return "\n\n".join([f"# {title}", NOTICE, *(part.strip() for part in parts if part.strip())]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    body = [_row(each) for each in rows]
    return "\n".join([_row(head), "|" + "---|" * len(head), *body]) if body else ""


def code(text: object) -> str:
    """Something literal; nothing for nothing."""
    return f"`{text}`" if text != "" else ""


def literal(value: object) -> str:
    """A value as YAML has it; a text without quotes, unless it is empty."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(literal(each) for each in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(plain(value))


def plain(value: Any) -> Any:
    """A whole number without its fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def from_docstring(text: str) -> str:
    """One paragraph of a docstring, without its line breaks and in Markdown's terms."""
    joined = re.sub(r"\s+", " ", text).strip()
    joined = re.sub(r":[a-z]+:`[~!]?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", joined)
    return joined.replace("``", "`")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"

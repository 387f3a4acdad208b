"""``make.md``: what ``make`` can do."""

import re
from collections.abc import Iterator

from deployments.config import ROOT
from deployments.reference.markdown import code, page, table

INTRODUCTION = """
`make` alone lists these. Everything runs in `.venv`, which is made and brought up to date when it is needed; each
target can be run again at any time and does what is missing. Those in the second table hand `ARGS` on, such as
`make serve ARGS="--port 8010"`; what they take, each says with `ARGS=--help`.
"""
TARGET = re.compile(r"^([a-z-]+):[^\n]*## ([^\n]*)\n((?:\t[^\n]*\n)*)", flags=re.MULTILINE)


def targets_page() -> str:
    """The page."""
    found = list(_targets())
    return page(
        "Make targets",
        INTRODUCTION,
        table(("Target", ""), ((code(f"make {name}"), text) for name, text, takes_args in found if not takes_args)),
        table(
            ("Target, with `ARGS`", ""),
            ((code(f"make {name}"), text) for name, text, takes_args in found if takes_args),
        ),
    )


def _targets() -> Iterator[tuple[str, str, bool]]:
    for target in TARGET.finditer((ROOT / "Makefile").read_text(encoding="utf-8")):
        yield target[1], target[2], "$(ARGS)" in target[3]

"""What Google's docstrings say: what a thing is, and what its arguments are."""

import inspect
import re
from collections.abc import Iterator

SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$", flags=re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", flags=re.MULTILINE)


def summary_of(thing: object) -> str:
    """The first paragraph."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0]


def args_of(thing: object) -> dict[str, str]:
    """Every argument that the docstring describes."""
    found: dict[str, str] = {}
    for name, section in _sections(inspect.getdoc(thing) or ""):
        if name == "Args":
            found |= {argument[1]: argument[2] for argument in ARGUMENT.finditer(section)}
    return found


def fields_of(model: type) -> dict[str, str]:
    """Every argument that a model or one of those that it inherits from describes; its own words go first."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each.__doc__ and each.__module__.partition(".")[0] != "pydantic":
            found |= args_of(each)
    return found


def _sections(text: str) -> Iterator[tuple[str, str]]:
    pieces = SECTION.split(text)
    yield from zip(pieces[1::2], pieces[2::2], strict=True)

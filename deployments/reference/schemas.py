"""What a JSON schema allows, in words: type, range and default of each field."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from deployments.reference.docstrings import fields_of
from deployments.reference.markdown import code, from_docstring, literal, plain, table

Node = Mapping[str, Any]
HEAD = ("Field", "Type", "Default", "Allowed", "")
CARRIERS = frozenset({1 << 31, 1 << 63})
"""Bounds of the integers that carry a value; they say nothing of it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One model's schema.

    Args:
        model: The model.
        from_elsewhere: Fields that have to be there and that something else fills in.
    """

    model: type[BaseModel]
    from_elsewhere: frozenset[str] = frozenset()

    def rows(self, leave_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
        """A row of ``HEAD`` for each field, in order."""
        document = self.model.model_json_schema()
        definitions, required = document.get("$defs", {}), document.get("required", ())
        texts = fields_of(self.model)
        for name, node in document["properties"].items():
            if name not in leave_out:
                default = "required" if name in set(required) - self.from_elsewhere else _default(node)
                said = from_docstring(texts.get(name, ""))
                yield code(name), type_of(node, definitions), default, allowed(node, definitions), said

    def table(self, leave_out: frozenset[str] = frozenset()) -> str:
        """All fields."""
        return table(HEAD, self.rows(leave_out))


def type_of(node: Node, definitions: Node) -> str:
    """Such as ``integer or text``."""
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(type_of(each, definitions) for each in node["anyOf"] if not _is_null(each)))
    if "$ref" in node:
        return _type_of_reference(definitions[_name(node)], definitions, _name(node))
    if "enum" in node or "const" in node:
        return " or ".join(code(each) for each in node.get("enum", [node.get("const")]))
    if node.get("type") == "array":
        return f"list of {type_of(node['items'], definitions)}"
    if node.get("type") == "object":
        values = node.get("additionalProperties")
        return f"mapping to {type_of(values, definitions)}" if isinstance(values, Mapping) else "mapping"
    return {"string": "text", "number": "number", "integer": "integer", "boolean": "true, false"}.get(
        node.get("type", ""), "anything"
    )


def _type_of_reference(target: Node, definitions: Node, name: str) -> str:
    if "enum" in target:
        return type_of(target, definitions)
    if name == "PolicyConfig":
        return "policy"
    return " ".join(_words(name.removesuffix("Config")))


def _words(name: str) -> Iterator[str]:
    """``TokenRange`` as two words."""
    begin = 0
    for place, letter in enumerate(name):
        if letter.isupper() and place:
            yield name[begin:place].lower()
            begin = place
    yield name[begin:].lower()


def allowed(node: Node, definitions: Node) -> str:
    """The range of a number, a text's pattern or length, how long a list may be."""
    said = [_allowed_here(each) for each in node.get("anyOf", [node])]
    return "; ".join(each for each in said if each)


def _allowed_here(node: Node) -> str:
    if node.get("type") == "array":
        inside = "" if node["items"].get("type") == "array" else _allowed_here(node["items"])
        return _of_entries(_count(node, "Items", "entries"), inside)
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), Mapping):
        return _of_entries(_count(node, "Properties", "entries"), _allowed_here(node["additionalProperties"]))
    if node.get("type") == "string":
        return code(node["pattern"]) if "pattern" in node else _count(node, "Length", "characters")
    return _bounds(node)


def _of_entries(number: str, inside: str) -> str:
    return ", ".join(each for each in (number, inside and f"each {inside}") if each)


def _bounds(node: Node) -> str:
    low = _bound(node, "minimum", "from") or _bound(node, "exclusiveMinimum", "above")
    high = _bound(node, "maximum", "to") or _bound(node, "exclusiveMaximum", "below")
    return " ".join(each for each in (low, high) if each)


def _bound(node: Node, name: str, word: str) -> str:
    value = node.get(name)
    return f"{word} {plain(value):,}" if value is not None and abs(value) not in CARRIERS else ""


def _count(node: Node, what: str, unit: str) -> str:
    least, most = node.get(f"min{what}"), node.get(f"max{what}")
    said = "not empty" if least else "", f"at most {most:,} {unit}" if most is not None else ""
    return ", ".join(each for each in said if each)


def _default(node: Node) -> str:
    value = node.get("default")
    if isinstance(value, Mapping):
        return code(value["name"]) if set(value) == {"name", "params"} else ""
    if value is None or value == []:
        return ""
    return "no bound" if value == math.inf else code(literal(value))


def _is_null(node: Node) -> bool:
    return node.get("type") == "null"


def _name(node: Node) -> str:
    return str(node["$ref"]).rpartition("/")[2]

"""YAML in which a key that stands twice is an error: else the last one wins, and nobody knows."""

from collections.abc import Hashable
from typing import Any

import yaml

MOST_PARTS = 1_000_000
"""A hundred thousand tenants have half of that."""


class _NoRepeats(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set[Any]()
        for each in (key for key, _ in node.value if not key.tag.endswith(":merge")):
            key = self.construct_object(each, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} can't be a key", each.start_mark)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", each.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """What is merged comes in as often as it is named, repeats included."""
        super().flatten_mapping(node)
        if len(node.value) > MOST_PARTS:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MOST_PARTS:,} keys are merged", node.start_mark
            )


def parse_yaml(text: str) -> Any:
    """The document that a text is.

    Raises:
        yaml.YAMLError: It is none, a key stands twice in it, or it has no end, or none within reason.
    """
    try:
        document = yaml.load(text, _NoRepeats)  # noqa: S506 - a safe loader
        num_parts = _num_parts(document, frozenset(), {})
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    if num_parts > MOST_PARTS:
        raise yaml.YAMLError(f"its aliases make {num_parts:,} values of it, of {MOST_PARTS:,} at the most")
    return document


def _num_parts(part: Any, around: frozenset[int], known: dict[int, int]) -> int:
    """How many values it has, what aliases name each time counted: a few lines may make billions of them, which are one
    object here and many for whoever goes through it.

    Args:
        part: A value.
        around: Those that it is in: an anchor may name one of them.
        known: Values that have been counted already.

    Raises:
        yaml.YAMLError: It is within itself.
    """
    if id(part) in around:
        raise yaml.YAMLError("it is within itself")
    if id(part) not in known:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        known[id(part)] = 1 + sum(_num_parts(each, around | {id(part)}, known) for each in inner)
    return known[id(part)]

"""YAML in which a key that stands twice is an error: else the last one wins, and nobody knows."""

from typing import Any

import yaml


class _NoRepeats(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        nodes = [key for key, _ in node.value if not key.tag.endswith(":merge")]
        keys = [self.construct_object(each, deep=True) for each in nodes]
        for number, (key, its) in enumerate(zip(keys, nodes, strict=True)):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", its.start_mark)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The document that a text is.

    Raises:
        yaml.YAMLError: It is none, a key stands twice in it, or it has no end.
    """
    try:
        document = yaml.load(text, _NoRepeats)  # noqa: S506 - a safe loader
        _check_end(document, frozenset())
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    return document


def _check_end(part: Any, around: frozenset[int]) -> None:
    """An anchor may name what it is in."""
    if id(part) in around:
        raise yaml.YAMLError("it is within itself")
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for each in inner:
        _check_end(each, around | {id(part)})

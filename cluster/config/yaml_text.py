"""YAML in which a key that stands twice is an error: else the last one wins, and nobody knows."""

from typing import Any

import yaml


class _NoRepeats(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The document that a text is.

    Raises:
        yaml.YAMLError: It is none, or a key stands twice in it.
    """
    return yaml.load(text, _NoRepeats)  # noqa: S506 - a safe loader

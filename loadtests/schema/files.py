"""YAML files, read and validated."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from cluster.config.strict import refusal
from cluster.config.yaml_text import parse_yaml
from policies.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path) -> Any:
    """The document in a file.

    Raises:
        ConfigError: The file can't be read, or is not YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), error.strerror, "a file that can be read") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), str(error), "YAML") from error


def validate(model: type[Model], document: object, folder: Path) -> Model:
    """The document as a model.

    Args:
        model: Which.
        document: What is in the file.
        folder: Where the file is.

    Raises:
        ConfigError: Field, value and what is allowed, of the first thing that is wrong.
    """
    try:
        return model.model_validate(document, context={"folder": folder})
    except ValidationError as error:
        raise refusal(error, whole="the file") from error

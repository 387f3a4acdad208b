"""YAML files, read and validated."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cluster.config.yaml_text import parse_yaml
from loadtests.schema.reading import CONFIG_ERROR
from policies.errors import ConfigError

_UNKNOWN_FIELD = {"extra_forbidden", "unexpected_keyword_argument"}
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
        raise _config_error(error.errors(include_url=False)[0]) from error


def _config_error(first: ErrorDetails) -> ConfigError:
    place = [str(part) for part in first["loc"]]
    if first["type"] == CONFIG_ERROR:
        own = first["ctx"]
        return ConfigError(".".join(filter(None, [*place, own["field"]])), own["value"], own["allowed"])
    field = ".".join(place) or "the file"
    if first["type"] == "missing":
        return ConfigError(field, None, "a value; the field has no default")
    if first["type"] in _UNKNOWN_FIELD:
        return ConfigError(field, first["input"], "no field of this name")
    return ConfigError(field, first["input"], first["msg"])

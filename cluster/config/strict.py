"""How a part of a YAML file is read: strictly, and with errors that name field, value and what is allowed."""

import difflib
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from policies.errors import ConfigError

CONFIG_ERROR = "config_error"
"""Type of an error that brings field, value and what is allowed."""
_OF_PYDANTIC = {"", "[key]", "constrained-int"}
"""Parts of a place that pydantic adds."""
_WORDS: Mapping[str, str] = {
    "missing": "a value; the field has no default",
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "no field of this name"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "{min_length} or more characters",
    "too_short": "{min_length} or more entries",
    "greater_than_equal": "{ge:.12g} or more",
    "greater_than": "more than {gt:.12g}",
    "less_than_equal": "{le:.12g} or less",
    "less_than": "less than {lt:.12g}",
}
"""What pydantic's types of errors say of what is allowed."""


def misfit(field: str, value: object, allowed: str) -> PydanticCustomError:
    """What a validator raises: like a ``ConfigError``, whose field begins where the validated part stands."""
    parts = {"field": field, "value": value, "allowed": allowed}
    return PydanticCustomError(CONFIG_ERROR, "{field}: got {value}; allowed: {allowed}", parts)


def refusal(error: ValidationError, *place: object, whole: str = "args") -> ConfigError:
    """The first thing that pydantic has against a document.

    Args:
        error: What pydantic has raised.
        place: Where the document stands.
        whole: What the document is called that stands nowhere.
    """
    first = error.errors(include_url=False)[0]
    own = first["ctx"] if first["type"] == CONFIG_ERROR else {"field": ""}
    parts = [str(part) for part in (*place, *first["loc"], own["field"]) if str(part) not in _OF_PYDANTIC]
    field = ".".join(parts) or whole
    if first["type"] == CONFIG_ERROR:
        return ConfigError(field, own["value"], own["allowed"])
    return ConfigError(field, None if first["type"] == "missing" else first["input"], allowed_by(first))


def allowed_by(error: ErrorDetails) -> str:
    """What would have been accepted, of one thing that pydantic has against a document."""
    if error["type"] in _WORDS:
        return _WORDS[error["type"]].format(**error.get("ctx", {}))
    return error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")


def unknown_field(name: object, known: list[str]) -> str:
    """What is allowed in the place of a field that there is not: what is probably meant, and all that there are."""
    meant = difflib.get_close_matches(str(name), known, n=1)
    return f"{f'{meant[0]}, if that is meant; ' if meant else ''}one of the fields {', '.join(known)}"


class Strict(BaseModel):
    """A part of a file: unknown fields are errors, a boolean is no number, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_fields_that_exist(cls, document: Any) -> Any:
        kinds = _kinds(cls)
        for name, value in document.items() if isinstance(document, Mapping) else ():
            if name not in kinds:
                raise misfit(str(name), value, unknown_field(name, list(kinds)))
            if isinstance(value, bool) and kinds[name] & {int, float} and bool not in kinds[name]:
                raise misfit(name, value, "a number")
            if type(value) in (int, float) and bool in kinds[name]:
                raise misfit(name, value, "true or false")
        return document


@cache
def _kinds(model: type[BaseModel]) -> Mapping[str, frozenset[Any]]:
    """What the values of each field may be, as far as they are plain ones."""
    return {name: frozenset(_plain(field.annotation)) for name, field in model.model_fields.items()}


def _plain(annotation: Any) -> set[Any]:
    if annotation in (bool, int, float):
        return {annotation}
    if get_origin(annotation) not in (Annotated, Union, UnionType):
        return set()
    return {found for part in get_args(annotation) for found in _plain(part)}


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise misfit("", value, "a number")
    return value


NO_BOOLEAN = BeforeValidator(_no_boolean)
"""Of a number within a list or a mapping."""

"""What a body's fields say, as a model of them; and what is wrong with them, in OpenAI's shape."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deployments.openai.errors import ApiError, invalid

Model = TypeVar("Model", bound=BaseModel)


class Unserved(ValueError):
    """A field that is known and not served; carries its name through pydantic's machinery."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def validated(model: type[Model], fields: Any) -> Model:
    """A body's fields as a ``model``.

    Raises:
        ApiError: 400 for fields that are not those that are asked for.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise api_error_of(error) from error


def api_error_of(error: ValidationError) -> ApiError:
    """The first thing that pydantic found, in OpenAI's shape, with the field named."""
    errors = error.errors(include_url=False, include_input=False)
    first = next((each for each in errors if each["type"] != "missing"), errors[0])  # of a union's other forms
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Unserved):
        return invalid(str(cause), cause.field, "unsupported_value")
    path = [str(part) for part in first["loc"] if not (isinstance(part, str) and not part.isidentifier())]
    param = ".".join(_without_union_branches(path)) or None
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return invalid(f"{param or 'body'}: {first['msg']}", param, code)


def _without_union_branches(path: list[str]) -> list[str]:
    """Pydantic says which branch of a union it tried; the client knows the field and the index only."""
    return [part for part in path if not part[:1].isupper() and part not in ("str", "int", "bool", "float")]

"""Describes endpoints that read their bodies themselves, so that ``/docs`` and schema-driven tools know them too."""

from typing import Any

from pydantic import BaseModel

ERROR_STATUSES = {
    400: "The request is malformed or asks for what is not served; ``param`` names the field.",
    401: "There is no API key, or a wrong one; only where the deployment has tenants.",
    403: "The API key is not entitled to the priority class.",
    404: "The model does not exist.",
    405: "The path does not take this method.",
    413: "The body is too long.",
    429: "Refused: capacity exists, but not for this request now; ``Retry-After`` says when to try again.",
    499: "The client closed the connection.",
    500: "The engine failed on this request.",
    503: "No replica can take the request; ``Retry-After`` says when to try again.",
    504: "The request took longer than it is allowed to.",
}


def describe(model: type[BaseModel]) -> dict[str, Any]:
    """Keyword arguments for a FastAPI route whose body is ``model``."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema = _inlined(schema, schema.pop("$defs", {}))
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        "responses": {status: {"description": text} for status, text in ERROR_STATUSES.items()},
    }


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema without references: a route's own description is not a place for shared definitions."""
    if isinstance(node, list):
        return [_inlined(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}

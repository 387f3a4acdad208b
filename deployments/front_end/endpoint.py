"""One of vLLM's endpoints, and how what it gives is written."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from fastapi import Request
from pydantic import BaseModel, TypeAdapter

from deployments.openai.errors import ApiError


@dataclass(frozen=True)
class Endpoint:
    """See the module.

    Args:
        asked: Its requests: a model of pydantic's, or several forms of one.
        create: Answers one.
        body: Writes a whole answer.
        event: Writes an event of a stream.
        error: Writes what a stream that breaks off ends with.
        reader: Reads a body in the place of pydantic.
    """

    asked: Any
    create: Callable[[Any, Request], Awaitable[Any]]
    body: Callable[[Any], bytes] = lambda answer: answer.model_dump_json().encode()
    event: Callable[[Any], bytes] = str.encode
    error: Callable[[ApiError], bytes] = lambda error: b"data: " + error.body() + b"\n\n"

    reader: Callable[[dict[str, Any]], Any] | None = None

    @cached_property
    def known(self) -> frozenset[str]:
        """Fields that a request may have."""
        return frozenset(name for form in _forms(self.asked) for name in form.model_fields)

    @cached_property
    def read(self) -> Callable[[dict[str, Any]], Any]:
        """A body as a request; raises ``ValidationError``, or ``ApiError``."""
        return self.reader or TypeAdapter(self.asked).validate_python


def _forms(asked: Any) -> Iterator[type[BaseModel]]:
    if isinstance(asked, type) and issubclass(asked, BaseModel):
        yield asked
    for each in get_args(asked):
        yield from _forms(each)

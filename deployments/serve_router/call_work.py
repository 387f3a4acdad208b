"""How much work is a call of somebody's deployment? What can be seen of it in the call's arguments."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

CHARACTERS_PER_TOKEN = 4
PROMPT_FIELDS = ("prompt", "messages", "input")
"""Where OpenAI's request bodies have their text."""
DEPTH = 5
"""Messages, a message, its content, a part of it, its text."""
UNKNOWN = 1
"""Tokens of a call that nothing is known of: such calls are counted, and all weigh the same."""


def work_tokens(args: Iterable[Any], kwargs: Mapping[str, Any], work_from: str | None = None) -> int:
    """Work of a call in tokens, at least 1.

    A number is taken for tokens and a list of numbers for token ids; text is four characters a token. Looked at are
    the keyword arguments themselves, and every argument that is a mapping or has attributes, such as an OpenAI request
    body as JSON or as a pydantic model.

    Args:
        args: Positional arguments of the call.
        kwargs: Keyword arguments.
        work_from: The field to look for; by default those that hold a prompt.
    """
    fields = (work_from,) if work_from else PROMPT_FIELDS
    for body in (kwargs, *args, *kwargs.values()):
        for field in fields:
            found = body.get(field) if isinstance(body, Mapping) else getattr(body, field, None)
            tokens = _tokens_of(found)
            if tokens:
                return tokens
    return UNKNOWN


def _tokens_of(value: object) -> int:
    """0 for what is no work."""
    if isinstance(value, bool | bytes):
        return 0
    if isinstance(value, int | float):
        return int(value) if 0 < value < math.inf else 0
    if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], int):
        return len(value)
    return -(-sum(len(text) for text in _texts(value, DEPTH)) // CHARACTERS_PER_TOKEN)


def _texts(value: object, depth: int) -> Iterator[str]:
    """Text, and the texts in messages and in parts of messages."""
    if isinstance(value, str):
        yield value
    elif value is None or depth == 0:
        return
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each, depth - 1)
    elif isinstance(value, Mapping):
        yield from _texts(value.get("content") or value.get("text"), depth - 1)
    else:
        yield from _texts(getattr(value, "content", None) or getattr(value, "text", None), depth - 1)

"""Requests that no engine can take: they are too long, or name tokens that there are not; and what is said of them."""

from typing import Any

from deployments.openai.errors import ApiError, invalid
from engines.contract import MOST_BAD_WORDS_BYTES, MOST_ENTRIES

MOST_MESSAGES = 2_048
"""Of a conversation, with the parts of their contents: each takes a gateway two microseconds, and a dozen objects."""


def too_long(context_tokens: int, said: str, param: str = "prompt") -> ApiError:
    """A request that does not fit: how long it is, in words, and which field is at fault."""
    return invalid(f"the context is {context_tokens} tokens; {said}", param, "context_length_exceeded")


def check_conversation(fields: Any) -> None:
    """Refuses one of too many messages before each is looked at, which takes a gateway longer than all the rest.

    Args:
        fields: What a body says.

    Raises:
        ApiError: 400, it has more than are taken.
    """
    messages = fields.get("messages") if isinstance(fields, dict) else None
    if not isinstance(messages, list):
        return
    contents = (each.get("content") for each in messages if isinstance(each, dict))
    number = len(messages) + sum(len(each) for each in contents if isinstance(each, list))
    if number > MOST_MESSAGES:
        raise invalid(f"{number} messages, and parts of messages; at most {MOST_MESSAGES} are taken", "messages")


def check_lengths(fields: Any, context_tokens: int) -> None:
    """Refuses lists that have too many entries for any engine, likewise.

    Args:
        fields: What a body says.
        context_tokens: That fit; 0: not known yet.

    Raises:
        ApiError: 400, naming the field.
    """
    check_conversation(fields)
    if not isinstance(fields, dict):
        return
    for name, most in MOST_ENTRIES.items():
        entries = fields.get(name)
        if isinstance(entries, list | dict) and len(entries) > most:
            raise invalid(f"{name} has {len(entries)} entries; at most {most} are taken", name)
    _check_bad_words(fields.get("bad_words"))
    if not context_tokens:
        return
    prompt = fields.get("prompt")
    if isinstance(prompt, list):
        _check_length(prompt, context_tokens)
        for each in prompt:
            if isinstance(each, list):
                _check_length(each, context_tokens)


def _check_bad_words(words: Any) -> None:
    texts = [each for each in words if isinstance(each, str)] if isinstance(words, list) else []
    num_bytes = sum(len(each.encode(errors="surrogatepass")) for each in texts)
    if num_bytes > MOST_BAD_WORDS_BYTES:
        raise invalid(f"bad_words have {num_bytes} bytes; at most {MOST_BAD_WORDS_BYTES} are taken", "bad_words")


def _check_length(prompt: list[Any], context_tokens: int) -> None:
    if len(prompt) > context_tokens:
        raise too_long(context_tokens, f"prompt has {len(prompt)} entries", "prompt")


def check_vocabulary(fields: Any, vocabulary: int) -> None:
    """Refuses tokens that there are not.

    Args:
        fields: What a body says; what is no number there is for others to refuse.
        vocabulary: Number of token ids.

    Raises:
        ApiError: 400, naming the field.
    """
    for name in ("stop_token_ids", "allowed_token_ids"):
        named = fields.get(name)
        if isinstance(named, list) and any(isinstance(each, int) and each >= vocabulary for each in named):
            raise invalid(f"{name} must be below the vocabulary size {vocabulary}", name)

"""When two answers are the same: without what says when and which, and however tokens are cut into events."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

RANDOM = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "item_id",
    "call_id",
    "signature",
    "system_fingerprint",
    "sequence_number",
}
"""Keys whose values say when and which, not what."""
OWN = {"prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens"}
"""Keys that tell of the prefix cache, which is another one in every process."""
DIGITS = 2
"""Of log probabilities: prefills of other lengths round otherwise."""
DIGITS_OF = {"embedding": 4, "score": 4, "relevance_score": 4}
"""Of what is computed in one step."""
TEXTS = {"text", "content", "reasoning", "arguments", "delta", "partial_json", "thinking"}
LISTS = {"content", "tokens", "token_logprobs", "top_logprobs", "text_offset", "token_ids", "logprobs"}
"""Keys whose texts and lists an event continues."""
ENDS = {"finish_reason", "stop_reason"}


def events(text: str) -> list[Any]:
    """The data of a stream's events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def without_chance(value: Any, digits: int = DIGITS) -> Any:
    """A value without ids, times, ``null`` and the last digits."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in RANDOM | OWN and each is not None}
        return {key: without_chance(each, DIGITS_OF.get(key, digits)) for key, each in kept.items()}
    if isinstance(value, list):
        return [without_chance(each, digits) for each in value]
    return round(value, digits) if isinstance(value, float) else value


def joined(stream: Sequence[Any]) -> list[Any]:
    """A stream's events, joined where one only continues the text of the one before, or ends it."""
    result: list[Any] = []
    for event in stream:
        place, continued = _split(event)
        if result and isinstance(event, dict) and result[-1][0] == place:
            before = result[-1][1]
            for path, value in continued.items():
                is_end = path[-1] in ENDS
                before[path] = value if is_end or path not in before else before[path] + value
        else:
            result.append((place, continued))
    return [[_named(place), _named(continued)] for place, continued in result]


def _split(value: Any, path: tuple[str, ...] = ()) -> tuple[dict[tuple[str, ...], Any], dict[tuple[str, ...], Any]]:
    """What an event is about, and what it says: texts, lists beside them, and ends."""
    key = path[-1] if path else ""
    if (isinstance(value, str) and key in TEXTS) or (isinstance(value, list) and key in LISTS) or key in ENDS:
        return {}, {path: value} if value else {}
    if not isinstance(value, (dict, list)) or not value:
        return ({path: value}, {}) if value not in ({}, []) else ({}, {})
    about: dict[tuple[str, ...], Any] = {}
    said: dict[tuple[str, ...], Any] = {}
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        its_place, its_text = _split(each, (*path, str(name)))
        about |= its_place
        said |= its_text
    return about, said


def _named(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    return {".".join(path): value for path, value in values.items()}


def difference(wanted: Any, got: Any, place: str = "") -> str:
    """The first place where two values differ; empty where there is none."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key in sorted(wanted.keys() | got.keys()):
            found = difference(wanted.get(key), got.get(key), f"{place}.{key}")
            if found:
                return found
        return ""
    if isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got):
            return f"{place}: {len(got)} and not {len(wanted)}"
        each = (difference(*pair, f"{place}[]") for pair in zip(wanted, got, strict=True))
        return next((found for found in each if found), "")
    return "" if wanted == got else f"{place}: {json.dumps(got)[:60]} and not {json.dumps(wanted)[:60]}"

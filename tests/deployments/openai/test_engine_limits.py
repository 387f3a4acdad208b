"""What is too long for any engine is refused before it is looked at."""

from typing import Any

import pytest

from deployments.openai.engine_limits import MOST_MESSAGES, check_lengths, check_vocabulary
from deployments.openai.errors import ApiError
from tests.tables import for_each


@for_each(
    ("fields", "param"),
    [
        ({"prompt": [7] * 101}, "prompt"),
        ({"messages": [{}] * (MOST_MESSAGES + 1)}, "messages"),
        ({"messages": [{"content": [{}] * MOST_MESSAGES}]}, "messages"),
        ({"messages": [{"content": "x"}, 7, {"content": [{}] * (MOST_MESSAGES - 3)}]}, None),
        ({"logit_bias": dict.fromkeys(range(1_025))}, "logit_bias"),
        ({"allowed_token_ids": [None] * 1_025}, "allowed_token_ids"),
        ({"stop_token_ids": [1] * 101}, "stop_token_ids"),
        ({"bad_words": ["no"] * 65}, "bad_words"),
        ({"bad_words": ["\u00e9" * 2_000, 7, "\u00e9" * 49]}, "bad_words"),
        ({"prompt": [7] * 100, "logit_bias": dict.fromkeys(range(1_024)), "bad_words": ["\u00e9" * 2_048]}, None),
        ({"prompt": "x" * 1000}, None),
        ([1], None),
    ],
)
def test_lists_that_no_engine_can_take_are_refused_unread(fields: Any, param: str | None) -> None:
    if param is None:
        check_lengths(fields, 100)
        return
    with pytest.raises(ApiError) as caught:
        check_lengths(fields, 100)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_prompt_of_any_length_is_taken_while_the_context_is_not_known() -> None:
    check_lengths({"prompt": [7] * 1_000}, 0)
    with pytest.raises(ApiError, match="2049 messages"):
        check_lengths({"messages": [{}] * (MOST_MESSAGES + 1)}, 0)


@for_each(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [99, 100]}, "allowed_token_ids"),
        ({"stop_token_ids": [1 << 70]}, "stop_token_ids"),
        ({"allowed_token_ids": [99, "x", None], "stop_token_ids": 7}, None),
    ],
)
def test_tokens_that_there_are_not_are_refused_before_another_layer_reads_them(fields: Any, param: str | None) -> None:
    if param is None:
        check_vocabulary(fields, 100)
        return
    with pytest.raises(ApiError, match="vocabulary size 100") as caught:
        check_vocabulary(fields, 100)
    assert (caught.value.status, caught.value.param) == (400, param)

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from deployments.serve_router.call_work import UNKNOWN, work_tokens
from tests.tables import for_each


@dataclass
class Body:
    """As an OpenAI request is a pydantic model."""

    prompt: Any = None
    messages: list[Any] = field(default_factory=list)
    size: int = 7


@dataclass
class Message:
    content: Any


TEXT = "a" * 400
PARTS = [{"type": "text", "text": "a" * 300}, {"type": "image_url", "image_url": {"url": "x" * 900}}]


@for_each(
    ("args", "kwargs", "expected"),
    [
        ((), {"prompt": TEXT}, 100),
        (({"prompt": TEXT},), {}, 100),
        ((Body(prompt=TEXT),), {}, 100),
        ((), {"body": Body(prompt=TEXT)}, 100),
        (({"prompt": [5] * 33},), {}, 33),
        (({"prompt": ["abcd", "abcdefgh"]},), {}, 3),
        (({"messages": [{"role": "user", "content": TEXT}, {"role": "user", "content": "abcd"}]},), {}, 101),
        ((Body(messages=[Message(TEXT)]),), {}, 100),
        (({"messages": [{"role": "user", "content": PARTS}]},), {}, 75),
        (("unrelated", {"prompt": TEXT}), {}, 100),
        (({"prompt": "a"},), {}, 1),
    ],
    ids=["kwarg", "json", "model", "model_kwarg", "ids", "batch", "chat", "chat_model", "parts", "second", "short"],
)
def test_a_prompt_is_found_wherever_an_openai_request_has_it(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: int
) -> None:
    assert work_tokens(args, kwargs) == expected


@for_each("args", [(), (3,), ("just text",), ({"prompt": ""},), ({"prompt": b"abc"},), (Body(),)])
def test_a_call_without_a_prompt_is_counted_as_one(args: tuple[Any, ...]) -> None:
    assert work_tokens(args, {}) == UNKNOWN == 1


@for_each(
    ("args", "kwargs", "expected"),
    [((), {"size": 40}, 40), ((Body(prompt=TEXT),), {}, 7), (({"size": TEXT},), {}, 100), ((), {"prompt": TEXT}, 1)],
    ids=["kwarg", "attribute", "text", "not_there"],
)
def test_the_field_that_the_configuration_names_is_looked_at_alone(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: int
) -> None:
    assert work_tokens(args, kwargs, "size") == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["prompt", "messages", "content", "text"]), inner),
    max_leaves=10,
)


@given(args=st.lists(JSON), kwargs=st.dictionaries(st.sampled_from(["prompt", "messages", "x"]), JSON))
def test_whatever_is_called_with_is_at_least_one_token_of_work(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert work_tokens(args, kwargs) >= 1


def test_an_object_that_has_every_attribute_is_not_followed_for_ever() -> None:
    assert work_tokens((Mock(),), {}) == 1

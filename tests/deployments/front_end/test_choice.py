"""Which requests take the way through vLLM's layer, without vLLM."""

from typing import Any

import pytest

from deployments.front_end.choice import OwnKind, check_number, for_vllm, more_fields, uses
from deployments.openai.errors import ApiError
from tests.tables import for_each

VLLMS: dict[OwnKind, dict[str, Any]] = {
    "completion": {
        "prompt": None,
        "model": None,
        "n": 1,
        "echo": False,
        "suffix": None,
        "cache_salt": None,
        "user": None,
    },
    "chat": {
        "messages": None,
        "n": 1,
        "tools": None,
        "tool_choice": "none",
        "include_reasoning": True,
        "kv_transfer_params": None,
        "use_beam_search": False,
        "temperature": None,
    },
}
USER = {"role": "user", "content": "hi"}


def takes(kind: OwnKind, fields: Any) -> bool:
    return uses(kind, fields, more_fields(kind, VLLMS[kind]))


@for_each(
    ("kind", "fields"),
    [
        ("completion", {"prompt": "x", "n": 2}),
        ("completion", {"prompt": "x", "echo": True}),
        ("completion", {"prompt": "x", "suffix": "y"}),
        ("completion", {"prompt": ["x", "y"]}),
        ("completion", {"prompt": [[1], [2]]}),
        ("chat", {"messages": [USER], "tools": [{"type": "function"}]}),
        ("chat", {"messages": [USER], "tool_choice": "auto"}),
        ("chat", {"messages": [USER], "include_reasoning": False}),
        ("chat", {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{}]}]}),
        ("chat", {"messages": [{"role": "tool", "content": "4", "tool_call_id": "a"}]}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("chat", {"messages": [USER], "n": "2"}),
    ],
)
def test_what_the_gateways_own_layer_does_not_serve_takes_it(kind: OwnKind, fields: dict[str, Any]) -> None:
    assert takes(kind, fields)


@for_each(
    ("kind", "fields"),
    [
        ("completion", {"prompt": "x", "user": "me", "temperature": 0.5}),
        ("completion", {"prompt": "x", "n": 1, "echo": False, "suffix": "", "cache_salt": None}),
        ("completion", {"prompt": ["x"]}),
        ("completion", {"prompt": [1, 2, 3]}),
        ("completion", {"prompt": []}),
        ("chat", {"messages": [USER], "tools": [], "n": None, "include_reasoning": True}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]}),
        ("chat", {"messages": "x"}),
        ("chat", {"messages": [7]}),
        ("chat", ["no object"]),
        ("chat", None),
    ],
)
def test_whatever_else_does_not(kind: OwnKind, fields: Any) -> None:
    assert not takes(kind, fields)


@for_each("name", ["kv_transfer_params", "use_beam_search", "cache_salt"])
def test_what_a_deployment_of_many_engines_cant_serve_never_does(name: str) -> None:
    assert not takes("chat", {"messages": [USER], name: {"some": "thing"}})
    assert not takes("completion", {"prompt": "x", name: {"some": "thing"}})


def test_vllms_layer_is_given_neither_terms_nor_what_it_would_ask_of_one_engine() -> None:
    body = {
        "model": "m",
        "n": 2,
        "priority": "critical",
        "user": "me",
        "timeout": 3,
        "request_id": "r",
        "cache_salt": "s",
    }

    assert for_vllm({**body, "use_beam_search": False}, {"n"}) == {"model": "m", "n": 2}


@for_each("name", ["kv_transfer_params", "use_beam_search", "chat_template", "best_of", "functions"])
def test_what_neither_way_serves_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        for_vllm({"n": 2, name: {"some": "thing"}}, {"n", "kv_transfer_params", "use_beam_search"})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, name, "unsupported_value")


def test_parts_that_are_no_text_are_refused_by_name() -> None:
    for_vllm({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, {"no": "type"}]}, 7]}, ())
    for_vllm({"messages": None}, ())
    with pytest.raises(ApiError, match="of type image_url are not served") as refused:
        for_vllm({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, ())
    assert (refused.value.status, refused.value.param) == (400, "messages")


@for_each(
    ("prompt", "choices", "field"),
    [("x", 9, "n"), (None, 9, "n"), (["x"] * 5, 2, "prompt"), ([[1]] * 9, None, "prompt")],
)
def test_one_request_asks_for_so_many_answers_at_most(prompt: Any, choices: int | None, field: str) -> None:
    with pytest.raises(ApiError, match="at most 8 are given") as refused:
        check_number(prompt, choices, 8)
    assert refused.value.param == field
    check_number(prompt, choices, 10)


@for_each(("prompt", "choices"), [(None, None), ([1] * 99, 8), ([], 1), ("x", 8)])
def test_token_ids_are_one_prompt(prompt: Any, choices: int | None) -> None:
    check_number(prompt, choices, 8)

"""The requests that are compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engines.vllm.scripted_model import SCRIPTS, Script, tools_of


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    Args:
        path: Of the endpoint.
        feature: What is tried.
        body: Without the model.
        streams: Whether it is asked for as a stream, too.
        answer: What the model says to it word for word, where that is known.
    """

    path: str
    feature: str
    body: Mapping[str, Any]
    streams: bool = True
    answer: str = ""


TEXTS = ["The sea is wide.", "The sea is a wide thing, and deep.", "Count to five."]


def embedding_cases() -> Iterator[Case]:
    """What a model that embeds is asked."""
    path, text = "/v1/embeddings", TEXTS[0]
    said = {"role": "user", "content": text}
    yield _whole(path, "one text", input=text)
    yield _whole(path, "several texts", input=TEXTS)
    yield _whole(path, "token ids", input=[[5, 6, 7], [8, 9]])
    yield _whole(path, "a conversation", messages=[said])
    yield _whole(path, "a conversation as input", input=[said])
    yield _whole(path, "not of length 1", input=text, use_activation=False)
    yield _whole(path, "truncated", input=TEXTS[1], truncate_prompt_tokens=4)
    yield _whole(path, "base64", input=text, encoding_format="base64", embed_dtype="fp8_e4m3")
    yield _whole(path, "dimensions that it has not", input=text, dimensions=8)
    yield _whole(path, "too long a text", input="x " * 9_000)
    yield _whole(path, "nothing", input=[])
    yield from score_cases()


def score_cases() -> Iterator[Case]:
    """What a model that scores two texts is asked."""
    text, best = TEXTS[0], TEXTS[2]
    yield _whole("/v1/score", "one against many", queries=text, documents=TEXTS)
    yield _whole("/v1/score", "pair by pair", text_1=TEXTS, text_2=TEXTS[::-1])
    yield _whole("/v1/score", "no activation", queries=text, documents=TEXTS[1], use_activation=False)
    yield _whole("/v1/score", "two against three", queries=TEXTS[:2], documents=TEXTS)
    for path in ("/v1/rerank", "/v2/rerank"):
        yield _whole(path, "all", query=text, documents=TEXTS)
        yield _whole(path, "the best two", query=best, documents=TEXTS, top_n=2)
    yield _whole("/v1/rerank", "cut texts", query=text, documents=TEXTS, max_tokens_per_query=2, max_tokens_per_doc=3)


def _whole(path: str, feature: str, **body: Any) -> Case:
    return Case(path, feature, body, streams=False)


def cases() -> Iterator[Case]:
    """What a model that answers is asked."""
    yield from _completions()
    yield from _chats()
    for script in SCRIPTS:
        yield _scripted(script)
        yield _as_response(script)
        yield _as_message(script)


def _completions() -> Iterator[Case]:
    path, asked = "/v1/completions", {"prompt": "The sea is", "max_tokens": 12, "temperature": 0}
    yield Case(path, "plain", asked)
    yield Case(path, "logprobs", {**asked, "logprobs": 2})
    yield Case(path, "stop string", {**asked, "stop": ["e"]})
    yield Case(path, "echo", {**asked, "echo": True})
    yield Case(path, "echo with logprobs", {**asked, "echo": True, "logprobs": 1}, streams=False)
    yield Case(path, "echo alone", {**asked, "echo": True, "max_tokens": 0}, streams=False)
    yield Case(path, "batch of five", {**asked, "prompt": [f"{number} is" for number in range(5)]}, streams=False)
    yield Case(path, "prompt_logprobs", {**asked, "prompt_logprobs": 1}, streams=False)
    yield Case(path, "seed", {**asked, "temperature": 1, "seed": 7})
    yield Case(path, "n=3 with a seed", {**asked, "temperature": 1, "seed": 7, "n": 3}, streams=False)
    yield Case(path, "allowed_token_ids", {**asked, "allowed_token_ids": [100, 101, 102]})
    yield Case(path, "bad_words", {**asked, "bad_words": ["e", "the"]})
    for kind, spec in (("regex", "(yes|no)-[0-9]{3}"), ("choice", ["left", "right"]), ("json", {"enum": [12, 34]})):
        yield Case(path, f"structured_outputs: {kind}", {**asked, "structured_outputs": {kind: spec}})


def _chats() -> Iterator[Case]:
    path = "/v1/chat/completions"
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Count to five."}], "temperature": 0}
    asked["max_tokens"] = 40
    properties = {"size": {"enum": ["small", "large"]}, "paid": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["size", "paid"], "additionalProperties": False}
    yield Case(path, "usage", {**asked, "stream_options": {"include_usage": True}})
    yield Case(path, "logprobs", {**asked, "logprobs": True, "top_logprobs": 2})
    yield Case(path, "max_tokens", {**asked, "max_tokens": 4})
    yield Case(path, "n=3 with a seed", {**asked, "temperature": 1, "seed": 7, "n": 3, "max_tokens": 8}, streams=False)
    yield Case(path, "json_object", {**asked, "response_format": {"type": "json_object"}, "max_tokens": 12})
    named = {"type": "json_schema", "json_schema": {"name": "order", "schema": schema}}
    yield Case(path, "json_schema", {**asked, "response_format": named})
    function = {"name": "order", "parameters": schema, "strict": True}
    tools = [{"type": "function", "function": function}]
    yield Case(path, "tool_choice: required", {**asked, "tools": tools, "tool_choice": "required"})
    chosen = {"type": "function", "function": {"name": "order"}}
    yield Case(path, "tool_choice: one by name", {**asked, "tools": tools, "tool_choice": chosen})
    yield Case(path, "tool_choice: none", {**asked, "tools": tools, "tool_choice": "none"})
    call = {"id": "call-1", "type": "function", "function": {"name": "order", "arguments": "{}"}}
    turns = [*asked["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    turns.append({"role": "tool", "content": "done", "tool_call_id": "call-1"})
    yield Case(path, "a tool's answer", {**asked, "messages": turns})


def _scripted(script: Script) -> Case:
    body: dict[str, Any] = {"messages": script.messages(), "max_tokens": 120, "temperature": 0}
    if script.tools:
        body["tools"] = tools_of(script)
    return Case("/v1/chat/completions", f"script: {script.name}", body, answer=script.answer)


def _as_response(script: Script) -> Case:
    tools = [{"type": "function", **tool["function"]} for tool in tools_of(script)]
    body: dict[str, Any] = {"input": script.messages(), "max_output_tokens": 120, "temperature": 0}
    return Case("/v1/responses", f"script: {script.name}", {**body, "tools": tools} if tools else body)


def _as_message(script: Script) -> Case:
    schemas = [tool["function"] for tool in tools_of(script)]
    tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in schemas]
    body: dict[str, Any] = {"max_tokens": 120, "temperature": 0}
    body["messages"] = [each for each in script.messages() if each["role"] != "system"]
    if script.system:
        body["system"] = script.system
    return Case("/v1/messages", f"script: {script.name}", {**body, "tools": tools} if tools else body)

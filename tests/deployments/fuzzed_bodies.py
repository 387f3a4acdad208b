"""Bodies that are right, at the edge of it, or wrong, and what every answer to one of them has to be."""

import json
from typing import Any

import httpx
from hypothesis import strategies as st

MODEL = "tiny-llama"
MAX_OUTPUT_TOKENS = 4
BOUNDS = ("max_tokens", "max_completion_tokens", "min_tokens")

edges = st.sampled_from(
    [None, True, 0, 1, -1, 1.5, 2, 3, 20, 21, 0.0, 1e-9, 1e-300, -2.0, 2.0, 1 << 31, 1 << 63, 1 << 70, 1e308, "", "1"]
)
texts = st.text(max_size=12)
token_lists = st.lists(st.integers(0, 1023), min_size=1, max_size=6)
options: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, MAX_OUTPUT_TOKENS) | edges,
    "min_tokens": st.integers(0, 2) | edges,
    "temperature": st.floats(0, 2) | edges,
    "top_p": st.floats(0, 1, exclude_min=True) | edges,
    "top_k": st.integers(-1, 2000) | edges,
    "min_p": st.floats(0, 1) | edges,
    "seed": st.integers(-(1 << 63), (1 << 63) - 1) | edges,
    "stop": texts | st.lists(texts, max_size=3) | edges,
    "stop_token_ids": token_lists | edges,
    "presence_penalty": st.floats(-2, 2) | edges,
    "frequency_penalty": st.floats(-2, 2) | edges,
    "repetition_penalty": st.floats(0, 2, exclude_min=True) | edges,
    "logit_bias": st.dictionaries(st.integers(-1, 1024).map(str) | texts, st.floats(-100, 100), max_size=3) | edges,
    "logprobs": st.integers(0, 5) | st.booleans() | edges,
    "top_logprobs": st.integers(0, 5) | edges,
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "return_token_ids": st.booleans(),
    "stream": st.booleans() | st.none(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | edges,
    "priority": st.integers(-5, 5) | st.sampled_from(["critical", "standard", "sheddable", "urgent"]) | edges,
    "service_tier": st.sampled_from(["auto", "default", "flex", "scale", "priority", "gold"]) | edges,
    "timeout": st.integers(60, 86_400) | edges,
    "n": st.sampled_from([None, 1, 2, 0, 1.0]),
    "response_format": st.sampled_from([None, {}, {"type": "text"}, {"type": "json_object"}, 7, []]),
    "structured_outputs": st.sampled_from([None, {}, {"choice": ["a"]}, {"regex": "a", "grammar": "b"}, 7, []]),
    "allowed_token_ids": token_lists | edges,
    "bad_words": st.lists(texts, max_size=2) | edges,
    "prompt_logprobs": st.integers(-1, 21) | edges,
    "user": texts,
}
prompts = (
    st.text(min_size=1, max_size=12)
    | token_lists
    | token_lists.map(lambda ids: [ids])
    | st.lists(texts, max_size=2)
    | st.lists(token_lists, max_size=2)
    | edges
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"] * 3 + ["well"])
contents = texts | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
messages = st.lists(st.fixed_dictionaries({"role": roles, "content": contents}), max_size=3)


def bodies_with(required: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """The required fields, and a few of the others: with all of them at once nearly every body is wrong."""
    chosen = st.lists(st.sampled_from(sorted(options)), max_size=4, unique=True)
    extra = chosen.flatmap(lambda names: st.fixed_dictionaries({name: options[name] for name in names}))
    return st.builds(
        lambda fixed, more: more | fixed, st.fixed_dictionaries({"model": st.just(MODEL), **required}), extra
    )


completions = bodies_with({"prompt": prompts})
chats = bodies_with({"messages": messages})


def plain(body: Any) -> Any:
    """What JSON can carry; schemathesis marks a body that is not sent at all with an object of its own."""
    try:
        return json.loads(json.dumps(body))
    except TypeError:
        return None


def short(body: Any) -> Any:
    """Bounds the output, so that none is thousands of tokens long, and leaves it time; asks for the right model."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    for name in BOUNDS:
        if isinstance(body.get(name), int) and 8192 > body[name] > MAX_OUTPUT_TOKENS:
            body[name] = MAX_OUTPUT_TOKENS
    if all(body.get(name) is None for name in BOUNDS[:2]):
        body["max_tokens"] = MAX_OUTPUT_TOKENS
    if type(body.get("timeout")) in (int, float) and 0 < body["timeout"] < 60:
        body["timeout"] = 60
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    return body


def posted(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    """The answer to a body."""
    return http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


def send(http: httpx.Client, path: str, body: Any) -> None:
    """Sends a body and checks that the answer is a result, or an error in OpenAI's shape that names the field."""
    answer = posted(http, path, body)
    if answer.status_code == 200:
        assert_result(answer)
        return
    assert answer.status_code in (400, 404, 413), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    if isinstance(body, dict):
        assert error["param"], error


def assert_result(answer: httpx.Response) -> None:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert isinstance(answer.json(), dict)
        return
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all("error" not in json.loads(event.removeprefix("data: ")) for event in events[:-2])

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from deployments.openai.errors import ApiError
from deployments.openai.requests import (
    UNSERVED,
    ChatRequest,
    CompletionRequest,
    Message,
    SamplingFields,
    check_prompt_logprobs,
)
from deployments.openai.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.openai.validation import api_error_of
from engines.contract import Sampling, StructuredOutput
from tests.tables import for_each

VOCABULARY = 1024
ROOM = 500
USER = {"role": "user", "content": "hi"}
Fields = dict[str, Any]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
    max_leaves=8,
)


def objects(model: type[SamplingFields]) -> st.SearchStrategy[Fields]:
    """JSON objects with fields that the endpoint knows, and others."""
    names = st.sampled_from([*model.model_fields, *UNSERVED]) | st.text()
    required = {"model": "m", "prompt": "x"} if model is CompletionRequest else {"model": "m", "messages": [USER]}
    return st.dictionaries(names, JSON, max_size=6) | st.dictionaries(names, JSON, max_size=3).map(required.__or__)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "x", **fields})


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [USER], **fields})


def sampling_of(request: CompletionRequest) -> Sampling:
    return request.sampling(ROOM, request.max_tokens, request.logprobs, VOCABULARY)


def refused(model: type[SamplingFields], fields: Fields) -> ApiError:
    """The error that a client gets for these fields."""
    required = {"prompt": "x"} if model is CompletionRequest else {"messages": [USER]}
    try:
        sample(model.model_validate({"model": "m", **required, **fields}))
    except ValidationError as error:
        return api_error_of(error)
    except ApiError as error:
        return error
    raise AssertionError("it is served")


def sample(request: SamplingFields) -> Sampling:
    """All that is checked of a request after its validation."""
    if isinstance(request, CompletionRequest):
        request.single_prompt()
    return request.sampling(ROOM, request.max_tokens, None, VOCABULARY)


def test_a_completion_without_options_gets_openais_and_vllms_defaults() -> None:
    assert sampling_of(completion()) == Sampling(max_tokens=16)


def test_a_chat_without_a_limit_may_use_what_the_context_leaves() -> None:
    assert sample(chat()) == Sampling(max_tokens=ROOM)


def test_null_means_the_default() -> None:
    names = "temperature top_p top_k min_p seed stop stop_token_ids presence_penalty frequency_penalty".split()
    names += [*"repetition_penalty logit_bias logprobs n stream stream_options".split(), *UNSERVED]
    assert sampling_of(completion(**dict.fromkeys(names))) == Sampling(max_tokens=16)
    assert completion(max_tokens=None).max_tokens is None


def test_every_option_reaches_the_engine() -> None:
    same: Fields = {
        "max_tokens": 100,
        "min_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -7,
        "presence_penalty": -2.0,
        "frequency_penalty": 2.0,
        "repetition_penalty": 1.5,
        "logprobs": 4,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "prompt_logprobs": 2,
        "skip_special_tokens": False,
    }
    asked = {"stop": ["a", "b"], "stop_token_ids": [5, 6], "logit_bias": {"5": -100, "6": 100}}
    limits = {"allowed_token_ids": [7, 8], "bad_words": ["no"], "response_format": {"type": "json_object"}}

    assert sampling_of(completion(**same, **asked, **limits)) == Sampling(
        **same,
        stop=("a", "b"),
        stop_token_ids=(5, 6),
        logit_bias={5: -100.0, 6: 100.0},
        allowed_token_ids=(7, 8),
        bad_words=("no",),
        structured_output=StructuredOutput("json_object"),
    )
    asked_for = {*same, *asked, *limits} - {"response_format"} | {"structured_output"}
    assert asked_for == set(Sampling.__struct_fields__)


TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}


@for_each(
    ("fields", "structured"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutput("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"b": 1, "a": 2}}}},
            StructuredOutput("json", '{"b":1,"a":2}'),
        ),
        (
            {"response_format": TAG},
            StructuredOutput(
                "structural_tag", '{"type":"structural_tag","format":{"type":"const_string","value":"x"}}'
            ),
        ),
        ({"structured_outputs": {"json": {"type": "null"}}}, StructuredOutput("json", '{"type":"null"}')),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, StructuredOutput("json", '{"type": "null"}')),
        ({"structured_outputs": {"json_object": True, "regex": None}}, StructuredOutput("json_object")),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutput("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", 'b"']}}, StructuredOutput("choice", '["a","b\\""]')),
        ({"structured_outputs": {"grammar": "root ::= x"}}, StructuredOutput("grammar", "root ::= x")),
        ({"structured_outputs": {"structural_tag": "{}"}}, StructuredOutput("structural_tag", "{}")),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": False, "whitespace_pattern": None}},
            StructuredOutput("regex", "a"),
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            StructuredOutput("json_object"),
        ),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, StructuredOutput("regex", "a")),
    ],
)
def test_what_an_answer_has_to_match_may_be_said_as_openai_and_as_vllm_do(
    fields: Fields, structured: StructuredOutput | None
) -> None:
    assert sampling_of(completion(**fields)).structured_output == structured
    assert sample(chat(**fields)).structured_output == structured


@for_each(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema: {name, schema}"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format", "schema"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
        ({"response_format": "json"}, "response_format", ""),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of json, json_object, regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "must have one of"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "at least 1"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs", "string"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs", "False"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "not permitted"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "at least 1"),
        ({"allowed_token_ids": [VOCABULARY]}, "allowed_token_ids", f"below the vocabulary size {VOCABULARY}"),
        ({"bad_words": [""]}, "bad_words", "at least 1"),
        ({"bad_words": ["no"] * 65}, "bad_words", "at most 64"),
        ({"allowed_token_ids": [7] * 1_025}, "allowed_token_ids", "at most 1024"),
        ({"stop_token_ids": [7] * 101}, "stop_token_ids", "at most 100"),
        ({"logit_bias": dict.fromkeys(map(str, range(1_025)), 1)}, "logit_bias", "at most 1024"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias", "a bias is a number, -100 to 100"),
        ({"logit_bias": {"1": True}}, "logit_bias", "a bias is a number, -100 to 100"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "prompt_logprobs needs stream: false"),
    ],
)
def test_a_limit_that_is_none_is_refused_with_what_is_allowed(fields: Fields, param: str, message: str) -> None:
    error = refused(CompletionRequest, fields)
    assert (error.status, str(error.param).split(".")[0]) == (400, param)
    assert message in error.message


@for_each(
    ("kind", "fields"),
    [
        (DetokenizeRequest, {"tokens": [-1] * 1000}),
        (CompletionRequest, {"model": "m", "prompt": [-1] * 1000}),
        (CompletionRequest, {"model": "m", "prompt": [[-1] * 1000] * 1000}),
        (CompletionRequest, {"model": "m", "prompt": "a", "stop_token_ids": [-1] * 1000}),
        (CompletionRequest, {"model": "m", "prompt": "a", "allowed_token_ids": [-1] * 1000}),
        (CompletionRequest, {"model": "m", "prompt": "a", "bad_words": [""] * 1000}),
        (CompletionRequest, {"model": "m", "prompt": "a", "logit_bias": dict.fromkeys(map(str, range(1000)), 1e9)}),
    ],
)
def test_of_a_list_of_nonsense_no_more_is_looked_at_than_it_takes_to_say_so(kind: Any, fields: Fields) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    assert caught.value.error_count() <= 5, "of each form that it may have, one"


@for_each(("alternatives", "prompt_tokens", "fits"), [(0, 1 << 17, True), (20, 6_241, True), (20, 6_242, False)])
def test_of_a_prompt_no_more_logprobs_are_given_than_are_written_at_a_time(
    alternatives: int, prompt_tokens: int, fits: bool
) -> None:
    sampling = Sampling(max_tokens=1, prompt_logprobs=alternatives)
    if fits:
        check_prompt_logprobs(sampling, prompt_tokens)
        return
    with pytest.raises(ApiError, match="131082 logprobs; at most 131072") as caught:
        check_prompt_logprobs(sampling, prompt_tokens)
    assert (caught.value.status, caught.value.param) == (400, "prompt_logprobs")


@for_each(
    ("fields", "meaning"),
    [
        ({"stop": "\n"}, {"stop": ("\n",)}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"logit_bias": {}}, {"logit_bias": None}),
        ({"user": "me", "metadata": {"a": 1}}, {}),
    ],
    ids=["one stop string is a list of one", "no top-k", "no top-k", "no bias", "fields that nobody knows"],
)
def test_what_can_be_said_in_several_ways_means_the_same(fields: Fields, meaning: dict[str, Any]) -> None:
    assert sampling_of(completion(**fields)) == Sampling(**{"max_tokens": 16, **meaning})


@for_each(
    "fields",
    [
        *({"n": 1}, {"best_of": 1}, {"use_beam_search": False}, {"functions": []}),
        *({"echo": False}, {"suffix": ""}, {"tools": []}, {"guided_json": None}),
    ],
)
def test_a_field_that_is_not_served_may_say_what_is_served(fields: Fields) -> None:
    assert sampling_of(completion(**fields)) == Sampling(max_tokens=16)


@for_each(
    ("prompt", "single"),
    [("text", "text"), ([1, 2], [1, 2]), (["text"], "text"), ([[1, 2]], [1, 2]), ("", "")],
    ids=["text", "ids", "list_of_one_text", "list_of_one_list", "empty"],
)
def test_a_prompt_is_text_or_token_ids(prompt: object, single: object) -> None:
    assert completion(prompt=prompt).single_prompt() == single


@for_each("prompt", [["a", "b"], [[1], [2]], []], ids=["texts", "lists", "none"])
def test_a_batch_of_prompts_is_refused(prompt: object) -> None:
    assert refused(CompletionRequest, {"prompt": prompt}).param == "prompt"


@for_each(
    ("content", "text"),
    [("hi", "hi"), (None, ""), ([], ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")],
)
def test_a_messages_content_is_one_text(content: object, text: str) -> None:
    assert Message.model_validate({"role": "user", "content": content}).text() == text


@for_each("options", [None, {}, {"include_usage": False}])
def test_a_stream_has_no_usage_unless_it_is_asked_for(options: Fields | None) -> None:
    assert not completion(stream=True, stream_options=options).includes_usage
    assert completion(stream=True, stream_options={"include_usage": True}).includes_usage


@for_each("model", [CompletionRequest, ChatRequest])
@for_each("name", UNSERVED)
def test_what_is_known_and_not_served_is_refused_by_name(model: type[SamplingFields], name: str) -> None:
    error = refused(model, {name: {"some": "thing"}})
    assert (error.status, error.code, error.param) == (400, "unsupported_value", name)
    assert error.message == UNSERVED[name][1]


@for_each(
    "name",
    "n best_of use_beam_search echo suffix tools functions guided_json".split(),
)
def test_what_clients_ask_for_most_is_known_not_to_be_served(name: str) -> None:
    assert name in UNSERVED


@for_each("n", [0, 2, "1", True, 1.5])
def test_more_or_fewer_choices_than_one_are_refused(n: object) -> None:
    error = refused(CompletionRequest, {"n": n})
    assert (error.status, error.param) == (400, "n")


@for_each(
    ("model", "fields"),
    [
        (CompletionRequest, {"stream_options": {"include_usage": True}}),
        (ChatRequest, {"stream_options": {"include_usage": True}}),
        (ChatRequest, {"top_logprobs": 3}),
    ],
)
def test_stream_options_need_a_stream_and_alternatives_log_probabilities(
    model: type[SamplingFields], fields: Fields
) -> None:
    error = refused(model, fields)
    assert (error.code, [error.param]) == ("unsupported_value", [*fields])


WRONG: dict[str, list[Any]] = yaml.safe_load("""
{model: [7, null], max_tokens: [0, '5', 1.0, 1.5], min_tokens: [-1, 17], temperature: [-0.1, 2.1, hot],
  top_p: [0, 1.1], top_k: [-2], min_p: [1.1], seed: [9223372036854775808, true, 1.5], stream: [perhaps],
  stop: [7, '', [a, ''], [a, 7], [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]], stop_token_ids: [[1024], [-1]],
  presence_penalty: [2.1], frequency_penalty: [-2.1], repetition_penalty: [0],
  logit_bias: [{'5': 101}, {five: 1}, {'1024': 1}, {'-1': 1}],
  priority: [9223372036854775808, urgent], service_tier: [gold], timeout: [0, '5']}
""")
WRONG["temperature"].append(10**400)
WRONG["logit_bias"].append({"9" * 5000: 1})
WRONG_IN = [(model, param, values) for model in (CompletionRequest, ChatRequest) for param, values in WRONG.items()]
WRONG_IN += [(CompletionRequest, "prompt", [7, None, [1, -1], [1.5]]), (CompletionRequest, "logprobs", [21, -1, True])]


@for_each(("model", "param", "values"), WRONG_IN)
def test_a_value_out_of_range_is_refused_by_name(model: type[SamplingFields], param: str, values: list[Any]) -> None:
    for value in values:
        error = refused(model, {"max_tokens": 16, param: value})

        assert (error.status, error.code) == (400, "invalid_value"), value
        assert error.param is not None
        assert error.param.split(".")[0] == param
        assert len(error.message) < 300


@for_each(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "water"}, "messages"),
        ({"messages": [USER, {"role": "robot", "content": "hi"}]}, "messages.1.role"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_wrong_message_is_named_with_its_place(fields: Fields, param: str) -> None:
    error = refused(ChatRequest, fields)
    assert error.status == 400
    assert error.param is not None
    assert error.param.startswith(param)


@for_each("name", ["model", "prompt"])
def test_a_missing_field_is_named(name: str) -> None:
    fields = {"model": "m", "prompt": "x"}
    del fields[name]
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(fields)
    error = api_error_of(caught.value)

    assert (error.code, error.param) == ("missing_required_parameter", name)


@for_each("fields", [{}, {"prompt": "x", "messages": [USER]}], ids=["neither", "both"])
def test_what_is_tokenized_is_a_prompt_or_a_chat(fields: Fields) -> None:
    with pytest.raises(ValidationError) as caught:
        TokenizeRequest.model_validate(fields)
    assert api_error_of(caught.value).param == "prompt"


def check_anything(model: type[SamplingFields], fields: Fields) -> None:
    """Either the engine gets sampling parameters in range, or the client an error with the field at fault."""
    try:
        sampling = sample(model.model_validate(fields))
    except ValidationError as found:
        error = api_error_of(found)
    except ApiError as found:
        error = found
    else:
        assert sampling.max_tokens >= 1
        assert 0 <= sampling.temperature <= 2
        return
    assert error.status == 400
    assert error.param
    assert error.param.split(".")[0] in {*model.model_fields, *UNSERVED}
    assert error.response().body


@given(fields=objects(CompletionRequest))
@example(fields={"model": "m", "prompt": [[]]})
@example(fields={"model": "m", "prompt": "x", "response_format": [1]})
@example(fields={"model": "m", "prompt": "x", "n": [1]})
@example(fields={"model": "m", "prompt": "x", "stream_options": "x", "stream": True})
def test_any_object_is_a_completion_or_a_400_that_names_the_field(fields: Fields) -> None:
    check_anything(CompletionRequest, fields)


@given(fields=objects(ChatRequest))
@example(fields={"model": "m", "messages": {}})
@example(fields={"model": "m", "messages": [USER], "tools": "x"})
def test_any_object_is_a_chat_or_a_400_that_names_the_field(fields: Fields) -> None:
    check_anything(ChatRequest, fields)

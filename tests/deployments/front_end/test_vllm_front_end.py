"""vLLM's own OpenAI layer in front of the gateway's dispatcher, whose replica answers at once."""

import contextlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from deployments.config import VllmFrontEndConfig
from engines.contract import ChosenLogprob, Chunk, TokenLogprob
from policies.errors import ConfigError
from tests.deployments import gateway_in_process as in_process
from tests.tables import for_each
from tests.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore:max_tokens is deprecated")]

MODEL = "tiny-llama"
FRONT_END = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = (
    Chunk('<tool_call>\n{"name": "wea', (5,)),
    Chunk('ther", "arguments": {"ci', (6, 7)),
    Chunk('ty": "Oslo"}}\n</tool_call>', (8,), "stop"),
)


@pytest.fixture(scope="module", params=["routes", "hot routes"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A gateway with vLLM's layer, by way of FastAPI and past it."""
    with in_process.gateway_in_process(is_hot=request.param == "hot routes", vllm_front_end=FRONT_END) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """OpenAI's own client, of a gateway with vLLM's layer."""
    with (
        in_process.gateway_in_process(is_hot=True, vllm_front_end=FRONT_END) as http,
        openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0) as made,
    ):
        yield made


@pytest.fixture
def anthropics(client: openai.OpenAI) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own client, of the same gateway."""
    with anthropic.Anthropic(base_url=str(client.base_url).removesuffix("/v1/"), api_key="any", max_retries=0) as made:
        yield made


def answers(monkeypatch: pytest.MonkeyPatch, *chunks: Chunk) -> None:
    """From now on the replica answers with these."""
    monkeypatch.setattr(in_process, "ANSWER", chunks)


def test_several_choices_come_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="hi", n=3, max_tokens=2)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, max_tokens=2, stream=True, stream_options={"include_usage": True}
    )

    assert [(each.index, each.text, each.finish_reason) for each in whole.choices] == [
        (number, "water", "length") for number in range(3)
    ]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    texts: dict[int, str] = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "water", 1: "water"}
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == 4


def test_a_batch_of_prompts_is_answered_in_its_order_and_echoed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=["one ", "two ", "three "], max_tokens=2, echo=True)

    assert [each.text for each in whole.choices] == ["one water", "two water", "three water"]


def test_a_tool_call_is_read_out_of_what_the_model_wrote(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, *CALL)

    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[WEATHER], max_tokens=20)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=[WEATHER], max_tokens=20) as stream:
        streamed = stream.get_final_completion()

    for choice in (whole.choices[0], streamed.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        [call] = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_call_whose_replica_is_lost_goes_on_at_another_one(
    monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    answers(monkeypatch, *CALL)
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "tools": [WEATHER]}
    with (
        in_process.gateway_in_process(is_hot=True, loses_first=True, vllm_front_end=FRONT_END) as http,
        openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0) as client,
    ):
        if streamed:
            with client.chat.completions.stream(**asked) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        assert re.findall(r"spillway_resumptions_total\{.*\} (.*)", http.get("/metrics").text) == ["1.0"]
    assert message.tool_calls
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})


def test_a_tools_answer_goes_into_the_prompt(client: openai.OpenAI) -> None:
    call: Any = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    conversation: list[ChatCompletionMessageParam] = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
    ]

    answer = client.chat.completions.create(model=MODEL, messages=conversation, tools=[WEATHER], max_tokens=2)

    assert answer.choices[0].message.content == "water"


def test_log_probabilities_are_those_of_the_engine(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    top = (TokenLogprob(300, "wa", -0.5, 1), TokenLogprob(301, "ter", -1.5, 2))
    answers(monkeypatch, Chunk("wa", (300,), "length", logprobs=(ChosenLogprob(top[0], top),)))

    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, max_tokens=1, logprobs=True, top_logprobs=2
    )

    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        [entry] = choice.logprobs.content
        assert (entry.token, entry.logprob) == ("wa", -0.5)
        assert [(each.token, each.logprob) for each in entry.top_logprobs] == [("wa", -0.5), ("ter", -1.5)]


def test_a_request_that_uses_nothing_of_it_takes_the_gateways_own_way(client: openai.OpenAI) -> None:
    own = client.completions.create(model=MODEL, prompt="hi", max_tokens=2)
    through_vllm = client.completions.create(model=MODEL, prompt="hi", max_tokens=2, n=2)

    assert own.system_fingerprint is None
    assert (through_vllm.system_fingerprint or "").startswith("vllm-")
    assert own.choices[0].text == through_vllm.choices[0].text


def test_the_responses_api_answers_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="What is the weather?", max_output_tokens=2)
    with client.responses.stream(model=MODEL, input="What is the weather?", max_output_tokens=2) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()

    assert (whole.output_text, whole.status) == ("water", "incomplete"), "its two tokens are all that it may have"
    assert streamed.output_text == "water"
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.output_text.delta") == 2


def test_the_responses_api_calls_tools(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, *CALL)
    tool: Any = {"type": "function", **WEATHER["function"]}

    answer = client.responses.create(model=MODEL, input="What is the weather?", tools=[tool], max_output_tokens=20)

    [call] = [each for each in answer.output if each.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})


def test_anthropics_client_gets_messages_whole_and_streamed(anthropics: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "What is the weather?"}]}

    whole: Any = anthropics.messages.create(**asked)
    with anthropics.messages.stream(**asked) as stream:
        streamed: Any = stream.get_final_message()
    count = anthropics.messages.count_tokens(model=MODEL, messages=asked["messages"])

    for message in (whole, streamed):
        [block] = message.content
        assert block.type == "text"
        assert (block.text, message.stop_reason) == ("water", "max_tokens")
        assert message.usage.output_tokens == 2
    assert count.input_tokens == whole.usage.input_tokens


def test_anthropics_client_calls_tools(anthropics: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, *CALL)
    tools: Any = [{"name": "weather", "input_schema": WEATHER["function"]["parameters"]}]

    message = anthropics.messages.create(
        model=MODEL, max_tokens=20, messages=[{"role": "user", "content": "What is the weather?"}], tools=tools
    )

    [call] = [each for each in message.content if each.type == "tool_use"]
    assert (call.name, call.input, message.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")


def test_anthropics_client_is_told_of_errors_in_its_own_shape(anthropics: anthropic.Anthropic) -> None:
    asked: Any = {"max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}

    with pytest.raises(anthropic.NotFoundError) as unknown:
        anthropics.messages.create(model="other", **asked)
    with pytest.raises(anthropic.BadRequestError) as wrong:
        anthropics.messages.create(model=MODEL, **{**asked, "max_tokens": 10_000})

    for error, kind in ((unknown, "not_found_error"), (wrong, "invalid_request_error")):
        body: Any = error.value.body
        assert (body["type"], body["error"]["type"]) == ("error", kind)


def test_what_needs_the_layer_is_not_found_without_it() -> None:
    with in_process.gateway_in_process() as plain:
        for path in ("responses", "messages", "messages/count_tokens"):
            answer = plain.post(f"/v1/{path}", json={"model": MODEL, "input": "hi", "messages": [], "max_tokens": 2})
            assert answer.status_code == 404
            assert "needs gateway.vllm_front_end" in answer.json()["error"]["message"]


def test_token_ids_are_text_again(http: httpx.Client) -> None:
    text = "The people of this place."
    tokens = http.post("/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]

    assert http.post("/detokenize", json={"model": MODEL, "tokens": tokens}).json() == {"prompt": text}
    assert http.post("/detokenize", json={"tokens": [1 << 20]}).status_code == 400


def test_a_stream_comes_over_both_routes(http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "x", "n": 2, "stream": True}

    lines = [line for line in http.post("/v1/completions", json=body).text.splitlines() if line]

    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert sorted(event["choices"][0]["text"] for event in events) == ["ter", "ter", "wa", "wa"]


@for_each(
    ("path", "fields", "param", "message"),
    [
        ("completions", {"prompt": "x", "n": 0}, None, "n must be at least 1"),
        ("completions", {"prompt": "x", "n": 2, "max_tokens": 9000}, "max_tokens", "8192"),
        ("completions", {"prompt": "x", "suffix": "y"}, "suffix", "FIM"),
        ("completions", {"prompt": "x", "n": 300}, "n", "at most 256"),
        ("completions", {"prompt": "x", "n": "300"}, "n", "at most 256"),
        ("chat/completions", {"messages": MESSAGES, "n": 300.0}, "n", "at most 256"),
        ("completions", {"prompt": "x", "n": 2, "best_of": 3}, "best_of", "best_of must be 1"),
        ("completions", {"prompt": "x", "n": 2, "use_beam_search": True}, "use_beam_search", "not served"),
        ("completions", {"prompt": "x", "n": 2, "logprob_token_ids": [1]}, "logprob_token_ids", ""),
        (
            "completions",
            {"prompt": "x", "n": 2, "repetition_detection": {"max_pattern_size": 2, "min_count": 2}},
            "repetition_detection",
            "not served",
        ),
        ("chat/completions", {"messages": MESSAGES, "tools": "x"}, "tools", "valid list"),
        ("chat/completions", {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice", ""),
        ("chat/completions", {"messages": MESSAGES, "n": 2, "temperature": "hot"}, "temperature", "number"),
        (
            "completions",
            {"prompt": "x", "n": 2, "allowed_token_ids": [7] * 1_025},
            "allowed_token_ids",
            "has 1025 entries; at most 1024 are taken",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "n": 2, "stream": True, "allowed_token_ids": [3_628_799]},
            "allowed_token_ids",
            "below the vocabulary size",
        ),
        ("completions", {"prompt": "x", "n": 2, "bad_words": ["x" * 4_097]}, "bad_words", "have 4097 bytes"),
        ("completions", {"prompt": "x", "n": 2, "seed": (1 << 63) - 1}, "seed", "leaves none for n 2"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
            "image_url are not served",
        ),
    ],
)
def test_what_cant_be_served_is_a_bad_request_in_openais_shape(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str | None, message: str
) -> None:
    for stream in (False, True):
        answer = http.post(f"/v1/{path}", json={"model": MODEL, "stream": stream, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), answer.text
        assert error["param"] == param
        assert message in error["message"]


def test_another_model_is_not_found(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"model": "other", "prompt": "x", "n": 2})

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.fixture(scope="module")
def refusing() -> Iterator[httpx.Client]:
    """A gateway whose requests get no token within their second."""
    with in_process.gateway_in_process(is_hot=True, num_silent=1000, vllm_front_end=FRONT_END) as client:
        yield client


@for_each(
    ("path", "fields", "code"),
    [
        ("completions", {"prompt": "x", "n": 2}, "deadline_exceeded"),
        ("chat/completions", {"messages": MESSAGES, "n": 2}, "deadline_exceeded"),
        ("responses", {"input": "x"}, "deadline_exceeded"),
        ("messages", {"messages": MESSAGES, "max_tokens": 2}, None),
    ],
)
def test_a_failure_before_the_first_token_has_its_status_and_its_headers(
    refusing: httpx.Client, path: str, fields: dict[str, Any], code: str | None
) -> None:
    for stream in (False, True):
        body = {"model": MODEL, "stream": stream, "timeout": 0.2, **fields}

        answer = refusing.post(f"/v1/{path}", json=body, timeout=30)

        assert answer.status_code == 504, answer.text
        assert answer.json()["error"].get("code") == code
        assert answer.headers["x-spillway-gateway"] == "gateway-a"


@for_each(
    ("field", "config"),
    [
        ("tool_call_parser", {"tool_call_parser": "hermit"}),
        ("reasoning_parser", {"reasoning_parser": "hermit"}),
    ],
)
def test_a_parser_that_vllm_has_not_is_a_wrong_configuration(field: str, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as wrong, in_process.gateway_in_process(vllm_front_end=config):
        pass
    assert (wrong.value.field, wrong.value.value) == (f"gateway.vllm_front_end.{field}", "hermit")
    assert "deepseek_r1" in wrong.value.allowed or "hermes" in wrong.value.allowed


def test_a_parser_whose_tokens_the_model_has_not_is_a_wrong_configuration() -> None:
    llama = {"tool_call_parser": "llama3_json", "enable_auto_tool_choice": True}
    with pytest.raises(ConfigError) as wrong, in_process.gateway_in_process(vllm_front_end=llama):
        pass
    assert (wrong.value.field, "<|python_tag|>" in wrong.value.allowed) == ("gateway.vllm_front_end", True)


@for_each("num_chunks", [0, 1])
def test_a_client_that_goes_frees_all_that_was_handed_over_for_it(
    monkeypatch: pytest.MonkeyPatch, num_chunks: int
) -> None:
    """Before the first token, and in the middle of a stream."""
    answers(monkeypatch, *[Chunk("wa", (300,))] * num_chunks)
    monkeypatch.setattr("tests.deployments.host_dialogue.Call.ends", lambda call: None)
    with in_process.service_in_process(vllm_front_end=FRONT_END) as (portal, service):
        host = service._models[0].host
        with in_process.served_over_hot_routes(portal, service) as url, httpx.Client(base_url=url) as client:
            body = {"model": MODEL, "prompt": ["x", "y"], "n": 2, "stream": True}
            with (
                contextlib.suppress(httpx.ReadTimeout),
                client.stream("POST", "/v1/completions", json=body, timeout=1) as stream,
            ):
                lines = stream.iter_lines()  # one that is collected closes the connection
                next(lines)
                assert len(host._requests) == 4
            wait_until(lambda: not host._requests, "nothing is left of it")


def test_the_names_that_are_built_on_are_vllms_still() -> None:
    """An upgrade that moves them fails here, and not in a request."""
    from vllm.engine.protocol import EngineClient
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams

    from deployments.front_end.dispatcher_client import DispatcherClient
    from deployments.front_end.sampling import HARMLESS, HEEDED

    assert EngineClient.__abstractmethods__ == {
        *"abort check_health dead_error do_log_stats encode errored generate is_paused is_running is_sleeping".split(),
        *"is_stopped is_tracing_enabled notify_kv_transfer_request_rejected pause_generation add_lora".split(),
        *"release_kv_cache_memory reset_encoder_cache reset_mm_cache reset_prefix_cache resume_generation".split(),
        *"shutdown sleep start_profile stop_profile wake_up".split(),
    }
    assert not DispatcherClient.__abstractmethods__
    assert set(SamplingParams.__struct_fields__) >= HEEDED | HARMLESS
    assert {"reasoning_ended", "reasoning_parser_kwargs"} <= inspect.signature(EngineClient.generate).parameters.keys()
    assert {"index", "text", "token_ids", "logprobs", "finish_reason"} <= set(CompletionOutput.__dataclass_fields__)
    assert {"prompt_logprobs", "num_cached_tokens"} <= inspect.signature(RequestOutput.__init__).parameters.keys()
    assert set(VllmFrontEndConfig.model_fields) - {
        "tool_call_parser",
        "enable_auto_tool_choice",
        "max_requests",
        "max_inputs",
    } <= (inspect.signature(OpenAIServingChat.__init__).parameters.keys())
    assert {"tools", "tool_choice", "n"} <= ChatCompletionRequest.model_fields.keys()
    assert {"echo", "suffix", "n"} <= CompletionRequest.model_fields.keys()

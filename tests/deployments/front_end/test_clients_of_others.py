"""Clients that others have written around OpenAI's API, unchanged, against vLLM's layer over the dispatcher."""

import asyncio
import importlib
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr

from engines.contract import Chunk
from tests.deployments import gateway_in_process as in_process

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore:max_tokens is deprecated")]

MODEL = "tiny-llama"
FRONT_END = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
QUESTION = "What is the weather in Oslo?"
CALL = (
    Chunk('<tool_call>\n{"name": "wea', (5,)),
    Chunk('ther", "arguments": {"ci', (6, 7)),
    Chunk('ty": "Oslo"}}\n</tool_call>', (8,), "stop"),
)


class Report(BaseModel):
    """The weather of a place."""

    city: str
    sky: Literal["clear", "grey"]


REPORT = Report(city="Oslo", sky="grey")


def weather(city: str) -> str:
    """The weather in a city."""
    return f"grey in {city}"


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where a gateway with vLLM's layer is."""
    with in_process.gateway_in_process(is_hot=True, vllm_front_end=FRONT_END) as http:
        yield f"{http.base_url}/v1"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the replica answer with these chunks from now on."""
    return lambda *chunks: monkeypatch.setattr(in_process, "ANSWER", chunks)


# -- LangChain --------------------------------------------------------------------------------------------------------


@pytest.fixture
def chat(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=url, api_key=SecretStr("any"), temperature=0, max_retries=0)


def test_langchain_is_answered_whole_streamed_and_in_batches(chat: Any) -> None:
    whole = chat.invoke(QUESTION)
    assert whole.content == "water"
    assert whole.usage_metadata["output_tokens"] == 2
    assert "".join(each.content for each in chat.stream(QUESTION)) == "water"
    assert [each.content for each in chat.batch([QUESTION] * 3)] == ["water"] * 3
    assert asyncio.run(chat.ainvoke(QUESTION)).content == "water"


def test_langchain_has_the_model_call_a_tool_and_tells_it_the_result(chat: Any, answers: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    answers(*CALL)
    with_tools = chat.bind_tools([weather])
    asked = HumanMessage(QUESTION)
    whole = with_tools.invoke([asked])
    streamed = None
    for each in with_tools.stream([asked]):
        streamed = each if streamed is None else streamed + each
    assert streamed is not None
    for message in (whole, streamed):
        (call,) = message.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})

    answers(Chunk("It is grey.", (5,), "stop"))
    (call,) = whole.tool_calls
    told = ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
    assert with_tools.invoke([asked, whole, told]).content == "It is grey."


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_langchain_reads_a_structured_answer(chat: Any, answers: Any, method: str) -> None:
    answers(Chunk(REPORT.model_dump_json(), (5,), "stop"))
    assert chat.with_structured_output(Report, method=method).invoke(QUESTION) == REPORT


def test_langchain_reads_a_structured_answer_that_is_a_tool_call(chat: Any, answers: Any) -> None:
    call = {"name": "Report", "arguments": REPORT.model_dump()}
    answers(Chunk(f"<tool_call>\n{json.dumps(call)}\n</tool_call>", (5,), "stop"))
    assert chat.with_structured_output(Report, method="function_calling").invoke(QUESTION) == REPORT


# -- LiteLLM ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network for prices when it is imported
    return importlib.import_module("litellm")


@pytest.fixture(params=["openai", "hosted_vllm"])
def lite(request: pytest.FixtureRequest, url: str) -> Any:
    """What LiteLLM's calls have in common, by either of the names that it has for such a server."""
    shared = {"api_base": url, "api_key": "any", "num_retries": 0}
    return {"model": f"{request.param}/{MODEL}", "messages": [{"role": "user", "content": QUESTION}], **shared}


def test_litellm_is_answered_whole_streamed_and_asynchronously(litellm: Any, lite: Any) -> None:
    whole = litellm.completion(**lite)
    assert whole.choices[0].message.content == "water"
    assert whole.usage.completion_tokens == 2
    streamed = litellm.completion(**lite, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in streamed) == "water"
    assert asyncio.run(litellm.acompletion(**lite)).choices[0].message.content == "water"


def test_litellm_has_the_model_call_a_tool(litellm: Any, lite: Any, answers: Any) -> None:
    answers(*CALL)
    whole = litellm.completion(**lite, tools=[WEATHER], tool_choice="auto")
    chunks = list(litellm.completion(**lite, tools=[WEATHER], stream=True))
    for answer in (whole, litellm.stream_chunk_builder(chunks)):
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})


def test_litellm_reads_a_structured_answer(litellm: Any, lite: Any, answers: Any) -> None:
    answers(Chunk(REPORT.model_dump_json(), (5,), "stop"))
    answer = litellm.completion(**lite, response_format=Report)
    assert Report.model_validate_json(answer.choices[0].message.content) == REPORT


def test_litellm_knows_our_errors_by_their_kind(litellm: Any, lite: Any) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**lite, "model": lite["model"].replace(MODEL, "other")})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**lite, max_tokens=10_000_000)

"""What vLLM's layer serves, over a handoff between real engines: tools that have to be called, choices, batches."""

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.deployments.live_cluster import MODEL, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

PROMPT = "The people of this place say that water is good."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]


def tool(name: str, values: list[str]) -> ChatCompletionToolParam:
    parameters = {
        "type": "object",
        "properties": {"of": {"type": "string", "enum": values}},
        "required": ["of"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


TOOLS = [tool("depth", ["well", "sea"]), tool("colour", ["sky", "grass"])]
OF = {"depth": {"well", "sea"}, "colour": {"sky", "grass"}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "colour"}}])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_that_has_to_be_called_is_called(client: openai.OpenAI, choice: Any, streamed: bool) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": choice,
        "max_tokens": 400,
        "temperature": 0,
    }
    if streamed:
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**asked).choices[0].message

    assert message.tool_calls
    for call in message.tool_calls:
        assert json.loads(call.function.arguments)["of"] in OF[call.function.name]
        assert choice == "required" or call.function.name == "colour"


def test_choices_of_one_prompt_are_drawn_apart_and_the_same_with_the_same_seed(client: openai.OpenAI) -> None:
    def drawn(number: int) -> list[str]:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, n=number, max_tokens=12, temperature=1, seed=5)
        return [each.text for each in answer.choices]

    three = drawn(3)

    assert len(set(three)) == 3
    assert drawn(3) == three
    assert drawn(2) == three[:2]


def test_a_batch_of_five_prompts_is_five_completions(client: openai.OpenAI, live: Live) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(5)]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}

    alone = [client.completions.create(prompt=each, **asked).choices[0].text for each in prompts]
    together = client.completions.create(prompt=prompts, **asked)
    by_ids = client.completions.create(prompt=[live.token_ids(prompt=each) for each in prompts], **asked)

    assert [each.text for each in together.choices] == alone
    assert [each.text for each in by_ids.choices] == alone


def test_both_ways_say_the_same_of_a_chat(client: openai.OpenAI) -> None:
    """Text, log probabilities, usage and the reason for the end: once past vLLM's layer, and once through it."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 10,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }

    own = client.chat.completions.create(**asked)
    through_vllm = client.chat.completions.create(**asked, parallel_tool_calls=False)

    for choice in through_vllm.choices:
        assert choice.message.content == own.choices[0].message.content
        assert choice.finish_reason == own.choices[0].finish_reason
        assert choice.logprobs == own.choices[0].logprobs
    assert own.usage is not None
    assert through_vllm.usage is not None
    assert through_vllm.usage.prompt_tokens == own.usage.prompt_tokens
    assert through_vllm.usage.completion_tokens == own.usage.completion_tokens


def test_an_echo_has_the_prompt_before_the_answer_and_its_log_probabilities(client: openai.OpenAI, live: Live) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, echo=True, max_tokens=4, temperature=0, logprobs=1)

    [choice] = answer.choices
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert len(choice.logprobs.tokens) == len(live.token_ids(prompt=PROMPT)) + 4

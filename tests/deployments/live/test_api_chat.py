"""``/v1/chat/completions`` through OpenAI's own client."""

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.deployments.live_cluster import MODEL, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

END_OF_TEXT = "0"
"""The tiny model's token."""
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are a well."},
    {"role": "user", "content": "How much water is in you?"},
]


def greedy(client: openai.OpenAI, messages: list[ChatCompletionMessageParam] | None = None) -> str:
    answer = client.chat.completions.create(
        model=MODEL, messages=messages or MESSAGES, max_completion_tokens=24, temperature=0
    )
    assert answer.choices[0].message.content is not None
    return answer.choices[0].message.content


def test_an_answer_has_a_message_usage_and_a_finish_reason(client: openai.OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=11, extra_body={"ignore_eos": True}
    )

    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 11
    assert answer.usage.prompt_tokens == len(live.token_ids(messages=MESSAGES))


def test_a_stream_opens_with_the_role_and_gives_the_same_text(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=24, temperature=0, stream=True
    )

    chunks = list(stream)

    assert chunks[0].object == "chat.completion.chunk"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.role for chunk in chunks[1:]] == [None] * (len(chunks) - 1)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == greedy(client)
    assert chunks[-1].choices[0].finish_reason is not None


async def test_the_asynchronous_client_gets_the_same(client: openai.OpenAI, async_client: openai.AsyncOpenAI) -> None:
    whole = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0, stream=True
    )

    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert text == whole.choices[0].message.content == greedy(client)


def test_content_in_parts_is_the_same_content(client: openai.OpenAI) -> None:
    parts: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "You are a well."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "How much water "}, {"type": "text", "text": "is in you?"}],
        },
    ]

    assert greedy(client, parts) == greedy(client)


def test_a_chat_is_a_completion_of_the_chat_template(client: openai.OpenAI, live: Live) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=live.token_ids(messages=MESSAGES), max_tokens=24, temperature=0
    )

    assert answer.choices[0].text == greedy(client)


def test_a_stream_ends_with_usage_when_asked_for(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )

    *before, last = stream

    assert all(chunk.usage is None for chunk in before)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 20


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    free = greedy(client)
    stop = free[len(free) // 2 :][:3]

    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=24, temperature=0, stop=["never said", stop]
    )

    assert answer.choices[0].message.content == free[: free.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_the_same_seed_draws_the_same_answer(client: openai.OpenAI) -> None:
    def sample() -> str | None:
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=1.2, seed=3)
        return answer.choices[0].message.content

    assert sample() == sample()


@pytest.mark.parametrize("top", [0, 2])
def test_logprobs_come_with_each_token(client: openai.OpenAI, top: int) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=7,
        temperature=0,
        logprobs=True,
        top_logprobs=top,
        extra_body={"ignore_eos": True},
    )

    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 7
    assert "".join(each.token for each in content) == (answer.choices[0].message.content or "").replace("\ufffd", "")
    for each in content:
        assert each.logprob <= 0
        assert each.bytes == list(each.token.encode())
        assert len(each.top_logprobs) == top
        assert all(other.logprob <= each.logprob for other in each.top_logprobs), "greedy takes the likeliest"


def test_a_stream_carries_the_same_logprobs(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=7, temperature=0, logprobs=True, top_logprobs=1
    )
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=7, temperature=0, logprobs=True, top_logprobs=1, stream=True
    )

    streamed = [chunk.choices[0].logprobs for chunk in stream]

    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    tokens = [each.token for piece in streamed if piece for each in piece.content or ()]
    assert tokens == [each.token for each in whole.choices[0].logprobs.content]


def test_an_answer_without_a_bound_may_fill_the_context(client: openai.OpenAI) -> None:
    """It is made to end at once, so that the test does not wait for eight thousand tokens."""
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, logit_bias={END_OF_TEXT: 100}
    )

    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1

"""``/v1/completions`` through OpenAI's own client."""

import openai
import pytest

from tests.deployments.live_cluster import MODEL, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

PROMPT = "The people of this place say that water is good."


def greedy(client: openai.OpenAI, prompt: str | list[int] = PROMPT, max_tokens: int = 24) -> str:
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0)
    return answer.choices[0].text


def without_broken_characters(text: str) -> str:
    """A token that is not a whole character has no text of its own."""
    return text.replace("\ufffd", "")


def test_a_completion_has_text_usage_and_a_finish_reason(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )

    assert answer.object == "text_completion"
    assert answer.model == MODEL
    assert answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert choice.index == 0
    assert choice.text
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_gives_the_text_that_a_whole_answer_gives(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=40, temperature=0, stream=True)

    chunks = list(stream)

    assert "".join(chunk.choices[0].text for chunk in chunks) == greedy(client, max_tokens=40)
    assert len(chunks) > 1
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    reasons: list[str | None] = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] is not None
    assert all(chunk.usage is None for chunk in chunks)


async def test_the_asynchronous_client_streams_the_same(
    client: openai.OpenAI, async_client: openai.AsyncOpenAI
) -> None:
    stream = await async_client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stream=True
    )

    text = "".join([chunk.choices[0].text async for chunk in stream])

    assert text == greedy(client)


def test_token_ids_are_as_good_a_prompt_as_their_text(client: openai.OpenAI, live: Live) -> None:
    token_ids = live.token_ids(prompt=PROMPT)

    by_ids = client.completions.create(model=MODEL, prompt=token_ids, max_tokens=24, temperature=0)

    assert by_ids.choices[0].text == greedy(client)
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == len(token_ids)


def test_a_list_with_one_prompt_is_that_prompt(client: openai.OpenAI, live: Live) -> None:
    as_text = client.completions.create(model=MODEL, prompt=[PROMPT], max_tokens=24, temperature=0)
    as_ids = client.completions.create(
        model=MODEL, prompt=[live.token_ids(prompt=PROMPT)], max_tokens=24, temperature=0
    )

    assert as_text.choices[0].text == as_ids.choices[0].text == greedy(client)


def test_a_stream_ends_with_usage_when_asked_for(client: openai.OpenAI, live: Live) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )

    *before, last = stream

    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in before)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 20
    assert last.usage.prompt_tokens == len(live.token_ids(prompt=PROMPT))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, streamed: bool) -> None:
    free = greedy(client, max_tokens=30)
    stop = free[len(free) // 2 :][:4]

    if streamed:
        stream = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=30, temperature=0, stop=[stop], stream=True
        )
        chunks = list(stream)
        text, reason = "".join(each.choices[0].text for each in chunks), chunks[-1].choices[0].finish_reason
    else:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, temperature=0, stop=stop)
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason

    assert text == free[: free.index(stop)]
    assert reason == "stop"


def test_a_stop_string_can_be_kept_in_the_text(client: openai.OpenAI) -> None:
    free = greedy(client, max_tokens=30)
    stop = free[len(free) // 2 :][:4]

    answer = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=30,
        temperature=0,
        stop=stop,
        extra_body={"include_stop_str_in_output": True},
    )

    assert answer.choices[0].text == free[: free.index(stop) + len(stop)]
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["stop_reason"] == stop


def test_the_same_seed_draws_the_same_text(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=1.0, seed=seed)
        return answer.choices[0].text

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in (7, 8, 9)}) > 1


@pytest.mark.parametrize("max_tokens", [1, 2, 37])
def test_max_tokens_are_kept_to(client: openai.OpenAI, max_tokens: int) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=max_tokens, extra_body={"ignore_eos": True}
    )

    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    assert answer.choices[0].finish_reason == "length"


def test_sixteen_tokens_are_the_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, extra_body={"ignore_eos": True})

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_prompt_and_output_may_fill_the_context_to_the_last_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[11] * 8190, max_tokens=2, extra_body={"ignore_eos": True})

    assert answer.usage is not None
    assert answer.usage.total_tokens == 8192


def test_logprobs_come_with_each_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=9, temperature=0, logprobs=3, extra_body={"ignore_eos": True}
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    assert [len(each) for each in (logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset)] == [9, 9, 9]
    assert "".join(logprobs.tokens) == without_broken_characters(answer.choices[0].text)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert token in top
        assert 1 <= len(top) <= 3, "tokens of the same text share an entry"
        assert max(top.values()) <= logprob <= 0, "greedy takes the likeliest"
    assert logprobs.text_offset == sorted(logprobs.text_offset)


def test_a_stream_carries_the_same_logprobs(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9, temperature=0, logprobs=2)
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9, temperature=0, logprobs=2, stream=True)

    pieces = [chunk.choices[0].logprobs for chunk in stream]

    assert whole.choices[0].logprobs is not None
    assert [token for piece in pieces if piece for token in piece.tokens or ()] == whole.choices[0].logprobs.tokens


def test_token_ids_come_back_when_asked_for(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=9,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=9,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )

    streamed = [token for chunk in stream for token in (chunk.choices[0].model_extra or {})["token_ids"]]

    assert (answer.choices[0].model_extra or {})["token_ids"] == streamed
    assert len(streamed) == 9


def test_a_stop_token_ends_the_output(client: openai.OpenAI) -> None:
    options = {"ignore_eos": True, "return_token_ids": True}
    free = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9, temperature=0, extra_body=options)
    token_ids = (free.choices[0].model_extra or {})["token_ids"]

    answer = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=9,
        temperature=0,
        extra_body=options | {"stop_token_ids": [token_ids[4]]},
    )

    assert answer.choices[0].finish_reason == "stop"
    assert (answer.choices[0].model_extra or {})["token_ids"] == token_ids[: token_ids.index(token_ids[4]) + 1]
    assert (answer.choices[0].model_extra or {})["stop_reason"] == token_ids[4]


def test_a_logit_bias_decides_the_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=3,
        temperature=0,
        logit_bias={"300": 100},
        extra_body={"return_token_ids": True},
    )

    assert (answer.choices[0].model_extra or {})["token_ids"] == [300, 300, 300]


def test_fields_that_nobody_knows_are_ignored(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, user="somebody", extra_body={"colour": {"of": "sky"}}
    )

    assert answer.choices[0].text == greedy(client)

"""What goes out is what OpenAI's own client reads, however the engine cuts its output into chunks."""

import json
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from deployments.openai.responses import DONE, OpenAiAnswer
from engines.contract import ChosenLogprob, Chunk, TokenLogprob
from tests.tables import for_each

WORDS = ("The", " sea", "", " is", " wide", " 😀", "\n", '"')
PROMPT_TOKENS = 11
Kind = Literal["completion", "chat"]
KINDS: tuple[Kind, ...] = ("completion", "chat")


def an_answer(kind: Kind, **options: Any) -> OpenAiAnswer:
    return OpenAiAnswer(
        kind=kind, request_id="cmpl-1", model="tiny", created=1_700_000_000, prompt_tokens=PROMPT_TOKENS, **options
    )


def logprob_of(token_id: int) -> ChosenLogprob:
    top = tuple(TokenLogprob(token_id + rank, WORDS[token_id] + "'" * rank, -0.5 - rank) for rank in range(3))
    return ChosenLogprob(top[0], top)


def chunks_of(*lengths: int, logprobs: bool = False, cached_tokens: int = 0) -> list[Chunk]:
    """The words, cut into chunks of these lengths; the last one carries the verdict."""
    cuts = [0, *accumulate(lengths)]
    return [
        Chunk(
            text="".join(WORDS[start:end]),
            token_ids=tuple(range(start, end)),
            finish_reason="length" if end == cuts[-1] else None,
            cached_tokens=cached_tokens,
            logprobs=tuple(map(logprob_of, range(start, end))) if logprobs else None,
        )
        for start, end in pairwise(cuts)
    ]


def streamed(answer: OpenAiAnswer, chunks: list[Chunk]) -> list[dict[str, Any]]:
    """The events of a whole stream, without the last one, which is not JSON."""
    raw = answer.opening() + b"".join(answer.event(chunk) for chunk in chunks) + answer.closing()
    *events, done, nothing = raw.split(b"\n\n")
    assert (done + b"\n\n", nothing) == (DONE, b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def whole(answer: OpenAiAnswer, chunks: list[Chunk]) -> dict[str, Any]:
    for chunk in chunks:
        answer.add(chunk)
    body: dict[str, Any] = json.loads(answer.body())
    return body


def completion_event(event: dict[str, Any]) -> Completion:
    """OpenAI's type has no null as a finish reason, though OpenAI's own streams do; everything else is checked."""
    choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in event["choices"]]
    return Completion.model_validate({**event, "choices": choices})


def splits(total: int) -> st.SearchStrategy[list[int]]:
    """Every way to cut ``total`` tokens into chunks."""
    cuts = st.sets(st.integers(min_value=1, max_value=total - 1)).map(sorted)
    return cuts.map(lambda inner: [end - start for start, end in pairwise([0, *inner, total])])


@given(lengths=splits(len(WORDS)), logprobs=st.booleans(), usage=st.booleans())
def test_events_of_a_completion_are_openais_and_add_up_to_the_text(
    lengths: list[int], logprobs: bool, usage: bool
) -> None:
    answer = an_answer("completion", includes_usage=usage, top_logprobs=2 if logprobs else 0)

    events = [completion_event(each) for each in streamed(answer, chunks_of(*lengths, logprobs=logprobs))]

    choices = [choice for event in events for choice in event.choices]
    assert "".join(choice.text for choice in choices) == "".join(WORDS)
    assert len(choices) == len(lengths)
    assert len(events) == len(lengths) + usage


@given(lengths=splits(len(WORDS)), logprobs=st.booleans(), usage=st.booleans())
def test_events_of_a_chat_are_openais_and_add_up_to_the_text(lengths: list[int], logprobs: bool, usage: bool) -> None:
    answer = an_answer("chat", includes_usage=usage, top_logprobs=2 if logprobs else 0)

    chunks = chunks_of(*lengths, logprobs=logprobs)
    events = [ChatCompletionChunk.model_validate(each) for each in streamed(answer, chunks)]

    choices = [choice for event in events for choice in event.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "".join(WORDS)
    assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * len(lengths)
    assert [choice.finish_reason for choice in choices] == [None] * len(lengths) + ["length"]


@for_each("kind", KINDS)
@given(lengths=splits(len(WORDS)), logprobs=st.booleans())
def test_a_whole_answer_is_the_same_however_it_was_cut(kind: Kind, lengths: list[int], logprobs: bool) -> None:
    body = whole(an_answer(kind), chunks_of(*lengths, logprobs=logprobs))

    assert body == whole(an_answer(kind), chunks_of(len(WORDS), logprobs=logprobs))
    if kind == "completion":
        (completion,) = Completion.model_validate(body).choices
        assert (completion.text, completion.finish_reason) == ("".join(WORDS), "length")
    else:
        (chat,) = ChatCompletion.model_validate(body).choices
        assert (chat.message.content, chat.message.role) == ("".join(WORDS), "assistant")
        assert chat.finish_reason == "length"


@for_each(
    ("kind", "whole_name", "event_name"),
    [("completion", "text_completion", "text_completion"), ("chat", "chat.completion", "chat.completion.chunk")],
)
def test_every_response_says_what_it_is(kind: Kind, whole_name: str, event_name: str) -> None:
    body = whole(an_answer(kind), chunks_of(2))
    events = streamed(an_answer(kind, includes_usage=True), chunks_of(1, 1))

    assert (body["id"], body["object"], body["created"], body["model"]) == ("cmpl-1", whole_name, 1_700_000_000, "tiny")
    assert {(each["id"], each["object"], each["created"], each["model"]) for each in events} == {
        ("cmpl-1", event_name, 1_700_000_000, "tiny")
    }


@for_each("kind", KINDS)
def test_usage_counts_tokens_and_not_chunks(kind: Kind) -> None:
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 7,
        "total_tokens": PROMPT_TOKENS + 7,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    chunks = chunks_of(3, 4, cached_tokens=8)

    assert whole(an_answer(kind), chunks)["usage"] == usage

    *events, last = streamed(an_answer(kind, includes_usage=True), chunks)
    assert (last["choices"], last["usage"]) == ([], usage)
    assert not any("usage" in event for event in events)


@for_each("kind", KINDS)
def test_a_stream_has_no_usage_unless_it_is_asked_for(kind: Kind) -> None:
    assert not any("usage" in event for event in streamed(an_answer(kind), chunks_of(1, 1)))


@for_each("kind", KINDS)
@for_each("stop_reason", ["\n", 7, None])
def test_what_ended_it_is_told(kind: Kind, stop_reason: str | int | None) -> None:
    chunk = Chunk("text", (1, 2), "stop", stop_reason)
    (choice,) = whole(an_answer(kind), [chunk])["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop_reason)


def test_offsets_of_a_completions_logprobs_are_places_in_the_text() -> None:
    offsets = [0, 3, 7, 7, 10, 15, 17, 18]
    chunks = chunks_of(3, 5, logprobs=True)

    body = Completion.model_validate(whole(an_answer("completion", top_logprobs=2), chunks))
    events = [completion_event(each) for each in streamed(an_answer("completion", top_logprobs=2), chunks)]

    assert body.choices[0].logprobs is not None
    assert body.choices[0].logprobs.text_offset == offsets
    found = [event.choices[0].logprobs.text_offset for event in events if event.choices[0].logprobs]
    assert found == [offsets[:3], offsets[3:]]
    text = body.choices[0].text
    assert [text[at : at + len(word)] for at, word in zip(offsets, WORDS, strict=True)] == list(WORDS)


def test_a_completions_logprobs_are_those_of_its_tokens() -> None:
    body = Completion.model_validate(whole(an_answer("completion", top_logprobs=2), chunks_of(2, logprobs=True)))
    found = body.choices[0].logprobs
    assert found is not None
    assert (found.tokens, found.token_logprobs) == (["The", " sea"], [-0.5, -0.5])
    assert found.top_logprobs == [{"The": -0.5, "The'": -1.5}, {" sea": -0.5, " sea'": -1.5}]


@for_each("top", [0, 1, 3])
def test_a_chats_logprobs_carry_bytes_and_as_many_alternatives_as_were_asked_for(top: int) -> None:
    chunks = chunks_of(len(WORDS), logprobs=True)
    body = ChatCompletion.model_validate(whole(an_answer("chat", top_logprobs=top), chunks))

    found = body.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [each.token for each in found.content] == list(WORDS)
    assert b"".join(bytes(each.bytes or ()) for each in found.content) == "".join(WORDS).encode()
    assert [len(each.top_logprobs) for each in found.content] == [top] * len(WORDS)


@for_each("kind", KINDS)
def test_without_a_wish_for_logprobs_there_are_none(kind: Kind) -> None:
    assert whole(an_answer(kind), chunks_of(2))["choices"][0]["logprobs"] is None
    assert all(event["choices"][0]["logprobs"] is None for event in streamed(an_answer(kind), chunks_of(2)))


@for_each("kind", KINDS)
def test_token_ids_come_with_the_text_when_they_are_asked_for(kind: Kind) -> None:
    chunks = chunks_of(2, 1)

    body = whole(an_answer(kind, returns_token_ids=True), chunks)
    events = streamed(an_answer(kind, returns_token_ids=True), chunks)

    assert body["choices"][0]["token_ids"] == [0, 1, 2]
    assert [event["choices"][0].get("token_ids") for event in events][-2:] == [[0, 1], [2]]
    assert "token_ids" not in whole(an_answer(kind), chunks)["choices"][0]


@for_each("kind", KINDS)
def test_a_prompts_logprobs_are_where_vllm_has_them(kind: Kind) -> None:
    first, second = chunks_of(1, 1)
    entry = ChosenLogprob(TokenLogprob(4, "x", -2.0, 7), (TokenLogprob(9, "y", -0.5, 1), TokenLogprob(4, "x", -2.0, 7)))
    first = msgspec.structs.replace(first, prompt_logprobs=(None, entry))

    body = whole(an_answer(kind), [first, second])

    place = body["choices"][0] if kind == "completion" else body
    assert place["prompt_logprobs"] == [
        None,
        {
            "9": {"logprob": -0.5, "rank": 1, "decoded_token": "y"},
            "4": {"logprob": -2.0, "rank": 7, "decoded_token": "x"},
        },
    ]
    assert "prompt_logprobs" not in str(whole(an_answer(kind), chunks_of(2)))

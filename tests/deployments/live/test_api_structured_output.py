"""What an answer has to match, over a handoff: the grammar of the decode has seen the token that the prefill drew."""

import re
from typing import Literal

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.deployments.live_cluster import MODEL, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

PROMPT = "The people of this place say that water is good."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]
REGEX = "(yes|no), [0-9]{3} times"


class Order(BaseModel):
    size: Literal["small", "large"]
    paid: bool
    toppings: list[Literal["cheese", "olives"]]


def test_openais_client_parses_an_answer_into_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Order, max_tokens=200, temperature=0
    )

    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Order)


def test_openais_client_parses_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Order, max_tokens=200, temperature=0
    )

    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Order, max_tokens=200, temperature=0
    ) as stream:
        streamed = stream.get_final_completion()

    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        ({"regex": REGEX}, REGEX),
        ({"choice": ["north", "south"]}, "north|south"),
        ({"grammar": 'root ::= "[" [a-c]+ "]"'}, r"\[[a-c]+\]"),
        ({"json": {"enum": [17, 23]}}, "17|23"),
    ],
    ids=["regex", "choice", "grammar", "json"],
)
def test_vllms_kinds_are_matched_streamed_and_not(
    client: openai.OpenAI, structured: dict[str, object], pattern: str
) -> None:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 400, "temperature": 0}
    extra = {"structured_outputs": structured}

    whole = client.completions.create(**asked, extra_body=extra).choices[0]  # type: ignore[call-overload]
    chunks = list(client.completions.create(**asked, extra_body=extra, stream=True))  # type: ignore[call-overload]

    assert whole.finish_reason == "stop"
    assert re.fullmatch(pattern, whole.text)
    assert "".join(each.choices[0].text for each in chunks) == whole.text


@pytest.mark.parametrize(
    "structured",
    [{"regex": "(unclosed"}, {"json": "{nonsense"}, {"grammar": "root = nothing"}, {"structural_tag": "{}"}],
    ids=["regex", "json", "grammar", "structural_tag"],
)
def test_what_is_no_structure_is_a_bad_request(http: httpx.Client, structured: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "structured_outputs": structured}

    answer = http.post("/v1/completions", json=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_allowed_tokens_and_bad_words_decide_what_comes(client: openai.OpenAI, live: Live) -> None:
    allowed = [100, 101, 102]
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    free = client.completions.create(**asked, logprobs=0).choices[0]  # type: ignore[call-overload]
    word = next(each for each in free.logprobs.tokens if each.isprintable() and each.strip())

    only = client.completions.create(  # type: ignore[call-overload]
        **asked, extra_body={"allowed_token_ids": allowed, "return_token_ids": True}
    ).choices[0]
    without = client.completions.create(**asked, logprobs=0, extra_body={"bad_words": [word]})  # type: ignore[call-overload]

    assert set(only.token_ids) <= set(allowed)
    assert word not in without.choices[0].logprobs.tokens


def test_log_probabilities_of_the_prompt_come_over_a_handoff(client: openai.OpenAI, live: Live) -> None:
    token_ids = live.token_ids(prompt=PROMPT)

    completion = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=2, temperature=0, extra_body={"prompt_logprobs": 1}
    ).choices[0]
    chat = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, temperature=0, extra_body={"prompt_logprobs": 1}
    )

    first, *others = completion.prompt_logprobs  # type: ignore[attr-defined]
    assert first is None
    assert [str(token) in entry for token, entry in zip(token_ids[1:], others, strict=True)] == [True] * len(others)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens  # type: ignore[attr-defined,union-attr]

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from deployments.openai.errors import ApiError
from deployments.openai.tokenization import (
    LONG_TEXT_CHARACTERS,
    MANY_MESSAGES,
    MOST_MESSAGES,
    MOST_WAITING,
    NUM_THREADS,
    PromptTokenizer,
    check_lengths,
)
from tests.tables import for_each

MODEL = Path(__file__).parents[3] / ".models" / "tiny-llama"
TEXTS = ["", "a", "Tell me about queues.", "naïve café — 東京 \N{ROCKET}", "  spaces\n\tand lines\n" * 50]


@for_each("text", TEXTS, ids=["empty", "letter", "english", "unicode", "long"])
async def test_a_text_gets_the_ids_that_transformers_own_choice_of_tokenizer_gives(text: str) -> None:
    from transformers import AutoTokenizer

    wanted = AutoTokenizer.from_pretrained(str(MODEL)).encode(text)
    assert await PromptTokenizer(str(MODEL)).encode(text) == wanted


async def test_a_conversation_gets_the_ids_that_transformers_own_choice_gives() -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a lane?"}]
    chosen = AutoTokenizer.from_pretrained(str(MODEL))
    text = chosen.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = await PromptTokenizer(str(MODEL)).encode_chat(messages, add_generation_prompt=True)

    assert ids == chosen.encode(text, add_special_tokens=False)


@for_each(
    "text", ["queues " * 5_000, "naïve café — 東京 \N{ROCKET}" * 2_000, "a" * 30_000], ids=["words", "unicode", "word"]
)
async def test_a_long_text_gets_the_same_ids_in_a_thread(text: str) -> None:
    assert len(text) > LONG_TEXT_CHARACTERS
    tokenizer = PromptTokenizer(str(MODEL))

    assert await tokenizer.encode(text, most_tokens=100_000) == tokenizer._encode_text(text, True)


async def test_a_long_conversation_gets_the_same_ids_in_a_thread() -> None:
    messages = [{"role": "user", "content": "What is a lane?"}] * (MANY_MESSAGES + 1)
    tokenizer = PromptTokenizer(str(MODEL))
    text = tokenizer._render(messages, True)

    assert await tokenizer.encode_chat(messages, True, most_tokens=8192) == tokenizer._encode_text(text, False)


async def test_other_requests_go_on_while_a_long_text_is_tokenized() -> None:
    tokenizer, turns = PromptTokenizer(str(MODEL)), 0
    tokenizing = asyncio.create_task(tokenizer.encode("queues and lanes " * 60_000))
    while not tokenizing.done():
        await asyncio.sleep(0.001)
        turns += 1

    assert turns > 3, "the tokenizer let go of Python's lock"


async def test_of_a_text_that_can_not_fit_a_part_is_tokenized() -> None:
    tokenizer, seen = PromptTokenizer(str(MODEL)), list[int]()
    count = tokenizer._count_beside

    def watched(text: str) -> int:
        seen.append(len(text))
        return count(text)

    tokenizer._count_beside = watched
    with pytest.raises(ApiError, match="the context is 1000 tokens") as caught:
        await tokenizer.encode("lane " * 1_000_000, most_tokens=1000)

    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert sum(seen) <= 10_000, "two characters for each token that fits, and four times as many"


async def test_a_text_of_long_tokens_is_not_taken_for_too_long() -> None:
    tokenizer = PromptTokenizer(str(MODEL))
    tokenizer._count_beside = lambda text: len(text) // 100
    tokenizer._encode_beside = lambda text, specials: [7] * (len(text) // 100)

    assert len(await tokenizer.encode("x" * 90_000, most_tokens=1000)) == 900


async def test_more_messages_than_tokens_fit_are_refused_unread() -> None:
    messages = [{"role": "user", "content": ""}] * 1_001
    with pytest.raises(ApiError, match="1001 messages"):
        await PromptTokenizer(str(MODEL)).encode_chat(messages, True, most_tokens=1000)


async def test_more_of_a_tenants_long_texts_than_may_wait_are_refused() -> None:
    tokenizer, may_go_on = PromptTokenizer(str(MODEL)), threading.Event()
    tokenizer._encode_beside = lambda text, specials: [int(may_go_on.wait(60))]
    asking = [
        asyncio.create_task(tokenizer.encode("x" * 30_000, tenant="much")) for _ in range(MOST_WAITING + NUM_THREADS)
    ]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="wait to be tokenized") as caught:
        await tokenizer.encode("x" * 30_000, tenant="much")
    may_go_on.set()

    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert await asyncio.gather(*asking) == [[1]] * len(asking)


async def test_a_long_text_waits_no_longer_than_its_client() -> None:
    tokenizer, may_go_on = PromptTokenizer(str(MODEL)), threading.Event()
    tokenizer._encode_beside = lambda text, specials: [int(may_go_on.wait(60))]
    waiting = [asyncio.create_task(tokenizer.encode("x" * 30_000)) for _ in range(NUM_THREADS)]
    await asyncio.sleep(0)
    for text in ("x" * 30_000, "y" * 30_000):
        with pytest.raises(ApiError) as caught:
            await tokenizer.encode(text, tenant="late", patience_s=0.01)
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    may_go_on.set()

    assert await asyncio.gather(*waiting) == [[1]] * NUM_THREADS
    assert await tokenizer.encode("x" * 30_000, tenant="late") == [1], "the line has forgotten them"


@for_each(
    ("fields", "param"),
    [
        ({"prompt": [7] * 101}, "prompt"),
        ({"messages": [{}] * (MOST_MESSAGES + 1)}, "messages"),
        ({"messages": [{"content": [{}] * MOST_MESSAGES}]}, "messages"),
        ({"messages": [{"content": "x"}, 7, {"content": [{}] * (MOST_MESSAGES - 3)}]}, None),
        ({"logit_bias": dict.fromkeys(range(1_025))}, "logit_bias"),
        ({"allowed_token_ids": [None] * 1_025}, "allowed_token_ids"),
        ({"stop_token_ids": [1] * 101}, "stop_token_ids"),
        ({"bad_words": ["no"] * 65}, "bad_words"),
        ({"bad_words": ["\u00e9" * 2_000, 7, "\u00e9" * 49]}, "bad_words"),
        ({"prompt": [7] * 100, "logit_bias": dict.fromkeys(range(1_024)), "bad_words": ["\u00e9" * 2_048]}, None),
        ({"prompt": "x" * 1000}, None),
        ([1], None),
    ],
)
def test_lists_that_no_engine_can_take_are_refused_unread(fields: Any, param: str | None) -> None:
    if param is None:
        check_lengths(fields, 100)
        return
    with pytest.raises(ApiError) as caught:
        check_lengths(fields, 100)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_prompt_of_any_length_is_taken_while_the_context_is_not_known() -> None:
    check_lengths({"prompt": [7] * 1_000}, 0)
    with pytest.raises(ApiError, match="2049 messages"):
        check_lengths({"messages": [{}] * (MOST_MESSAGES + 1)}, 0)


def test_a_gateway_with_a_plain_tokenizer_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom deployments.openai.tokenization import PromptTokenizer\n"
        f"PromptTokenizer({str(MODEL)!r})\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=MODEL.parents[1], check=False, timeout=120)

    assert done.returncode == 0

"""Prompts to token ids, as transformers' own choice of tokenizer makes them, here or in the process beside."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deployments.openai.errors import ApiError
from deployments.tokenizing.encoding_messages import Encoded, Wanted
from deployments.tokenizing.encoding_process import EncodingFailed, EncodingLost
from deployments.tokenizing.encoding_program import NUM_AT_A_TIME
from deployments.tokenizing.prompt_tokenizer import LONG_TEXT_CHARACTERS, MOST_WAITING, PromptTokenizer
from tests.tables import for_each

MODEL = Path(__file__).parents[3] / ".models" / "tiny-llama"
FOREIGN = "na\u00efve caf\u00e9 \u2014 \u6771\u4eac \N{ROCKET}"
TEXTS = ["", "a", "Tell me about queues.", FOREIGN, "  spaces\n\tand lines\n" * 50]
LONG = ["queues " * 5_000, FOREIGN * 2_000, "a" * 30_000]


class Encodes:
    """In the place of the processes.

    Args:
        tokens_per_character: Of any text.
    """

    def __init__(self, tokens_per_character: float = 1.0) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.lengths: list[int] = []
        self._tokens_per_character = tokens_per_character

    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        await self.may_go_on.wait()
        self.lengths.append(len(text))
        number = int(len(text) * self._tokens_per_character)
        return Encoded(0, number, b"" if wanted is Wanted.COUNT else bytes(4 * number))

    def close(self) -> None: ...


class Loses(Encodes):
    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        raise EncodingLost


class Fails(Encodes):
    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        raise EncodingFailed("ValueError: no such letter")


def _json(ids: list[int]) -> bytes:
    return json.dumps(ids, separators=(",", ":")).encode()


@pytest.fixture
async def tokenizer() -> AsyncIterator[PromptTokenizer]:
    made = PromptTokenizer(str(MODEL))
    yield made
    made.close()
    await asyncio.sleep(0)


def _with(process: Encodes, tokenizer: PromptTokenizer) -> PromptTokenizer:
    tokenizer._encoding.close()
    tokenizer._encoding = process  # type: ignore[assignment]
    return tokenizer


@for_each("text", TEXTS, ids=["empty", "letter", "english", "unicode", "lines"])
async def test_a_text_gets_the_ids_that_transformers_own_choice_of_tokenizer_gives(
    tokenizer: PromptTokenizer, text: str
) -> None:
    from transformers import AutoTokenizer

    wanted = AutoTokenizer.from_pretrained(str(MODEL)).encode(text)
    assert await tokenizer.encode(text) == wanted
    assert await tokenizer.list_tokens(text) == (len(wanted), _json(wanted))


async def test_a_conversation_gets_the_ids_that_transformers_own_choice_gives(tokenizer: PromptTokenizer) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a lane?"}]
    chosen = AutoTokenizer.from_pretrained(str(MODEL))
    text = chosen.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = await tokenizer.encode_chat(messages, add_generation_prompt=True)

    assert ids == chosen.encode(text, add_special_tokens=False)


async def test_long_texts_get_the_same_ids_from_the_process(tokenizer: PromptTokenizer) -> None:
    for text in LONG:
        assert len(text) > LONG_TEXT_CHARACTERS
        wanted = tokenizer._encode_text(text, True)
        assert await tokenizer.encode(text, most_tokens=100_000) == wanted
        assert await tokenizer.list_tokens(text) == (len(wanted), _json(wanted))
        assert (await tokenizer.list_tokens(text, False)).num_tokens == len(tokenizer._encode_text(text, False))


@for_each(
    ("number", "text"), [(1_000, "What is a lane?"), (201, "a"), (2, "lane " * 3_000)], ids=["both", "many", "long"]
)
async def test_a_long_conversation_gets_the_same_ids_from_the_process(
    tokenizer: PromptTokenizer, number: int, text: str
) -> None:
    messages = [{"role": "user", "content": text}] * number
    wanted = tokenizer._encode_text(tokenizer._render(messages, True), False)

    assert await tokenizer.encode_chat(messages, True, most_tokens=16_384) == wanted
    assert await tokenizer.list_chat_tokens(messages, True) == (len(wanted), _json(wanted))
    assert tokenizer._encoding._spare._running.pid, "there is one"


async def test_a_short_conversation_is_listed_at_once(tokenizer: PromptTokenizer) -> None:
    messages = [{"role": "user", "content": "What is a lane?"}]
    wanted = tokenizer._encode_text(tokenizer._render(messages, True), False)

    assert await tokenizer.list_chat_tokens(messages, True) == (len(wanted), _json(wanted))


async def test_of_a_text_that_can_not_fit_a_part_is_encoded(tokenizer: PromptTokenizer) -> None:
    process = Encodes()
    with pytest.raises(ApiError, match="the context is 1000 tokens") as caught:
        await _with(process, tokenizer).encode("lane " * 1_000_000, most_tokens=1000)

    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert process.lengths == [2_000], "two characters for each token that fits"


async def test_a_text_of_long_tokens_is_not_taken_for_too_long(tokenizer: PromptTokenizer) -> None:
    process = Encodes(tokens_per_character=0.01)

    assert len(await _with(process, tokenizer).encode("x" * 90_000, most_tokens=1000)) == 900
    assert process.lengths == [2_000, 8_000, 32_000, 90_000]


async def test_more_messages_than_tokens_fit_are_refused_unread(tokenizer: PromptTokenizer) -> None:
    messages = [{"role": "user", "content": ""}] * 1_001
    with pytest.raises(ApiError, match="1001 messages"):
        await tokenizer.encode_chat(messages, True, most_tokens=1000)


async def test_more_of_a_tenants_long_texts_than_may_wait_are_refused(tokenizer: PromptTokenizer) -> None:
    process, text = Encodes(), "x" * 30_000
    _with(process, tokenizer)
    process.may_go_on.clear()
    num_taken = MOST_WAITING + NUM_AT_A_TIME
    asking = [asyncio.create_task(tokenizer.encode(text, tenant="much")) for _ in range(num_taken)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="wait to be tokenized") as caught:
        await tokenizer.encode(text, tenant="much")
    process.may_go_on.set()

    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert await asyncio.gather(*asking) == [[0] * len(text)] * num_taken


async def test_a_long_text_waits_no_longer_than_its_client(tokenizer: PromptTokenizer) -> None:
    process, text = Encodes(), "x" * 30_000
    _with(process, tokenizer)
    process.may_go_on.clear()
    waiting = [asyncio.create_task(tokenizer.encode(text)) for _ in range(NUM_AT_A_TIME)]
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            await tokenizer.encode(text, tenant="late", patience_s=0.01)
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    process.may_go_on.set()

    await asyncio.gather(*waiting)
    assert len(await tokenizer.encode(text, tenant="late")) == len(text), "the line has forgotten them"


async def test_where_the_process_is_lost_clients_are_told_to_come_back(tokenizer: PromptTokenizer) -> None:
    _with(Loses(), tokenizer)
    with pytest.raises(ApiError, match="try again") as caught:
        await tokenizer.list_tokens("x" * 30_000)

    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "tokenizer_unavailable", 1.0)


async def test_a_text_that_the_tokenizer_can_not_encode_is_the_clients(tokenizer: PromptTokenizer) -> None:
    _with(Fails(), tokenizer)
    with pytest.raises(ApiError, match="no such letter") as caught:
        await tokenizer.encode("x" * 30_000)

    assert caught.value.status == 400


def test_a_gateway_with_a_plain_tokenizer_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom deployments.tokenizing.prompt_tokenizer import PromptTokenizer\n"
        f"PromptTokenizer({str(MODEL)!r})\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=MODEL.parents[1], check=False, timeout=120)

    assert done.returncode == 0

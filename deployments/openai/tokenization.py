"""Text to token ids, once, in the gateway; the engines get token ids."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError

from cluster.fair_threads import FairThreads, TooMuchWaits
from deployments.openai.errors import ApiError, error_of, invalid
from engines.contract import MOST_BAD_WORDS_BYTES, MOST_ENTRIES
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind

LONG_TEXT_CHARACTERS, MANY_MESSAGES = 20_000, 200
"""A longer text or conversation is tokenized in a thread, so that it does not hold up other requests' tokens."""
MOST_MESSAGES = 2_048
"""Of a conversation, with the parts of their contents: each takes a gateway two microseconds, and a dozen objects."""
NUM_THREADS, MOST_WAITING = 2, 64
"""Of a model in a gateway; of one tenant's texts and conversations, that wait for one."""
FIRST_CHARACTERS = 2
"""For each token that fits: so much of a longer text is tokenized first, and then four times as much."""
TOO_MANY_TIMES = 1.25
"""Who has so many times the tokens that fit in a part of its text has too many in all of it, wherever that is cut."""
FOR_EVER_S = 1e9
PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names under which transformers saves a tokenizer that is all in ``tokenizer.json``."""


Result = TypeVar("Result")


class PromptTokenizer:
    """The model's tokenizer and chat template.

    What is long waits for a thread, tenant by tenant. Of a text that can't fit no more is tokenized than it takes to
    say so.

    Args:
        model_path: Folder of the checkpoint.
    """

    def __init__(self, model_path: str) -> None:
        self._tokenizer = _load(model_path)
        self.vocabulary_tokens = len(self._tokenizer)
        self._encode_text = _encoder(self._tokenizer)
        self._encode_beside = _encoder_beside(self._tokenizer)
        self._count_beside = _counter_beside(self._tokenizer)
        self._threads = FairThreads(NUM_THREADS, MOST_WAITING)

    async def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        tenant: str = "",
        most_tokens: int = 0,
        patience_s: float = FOR_EVER_S,
    ) -> list[int]:
        """The text's token ids.

        Args:
            text: Which.
            add_special_tokens: Whether those are added that begin a text.
            tenant: Whose it is.
            most_tokens: That fit; 0: any number does.
            patience_s: How long its client waits.

        Raises:
            ApiError: 400, there are far more; 429, too many of its tenant's wait; 504, it has waited so long.
        """
        if len(text) <= LONG_TEXT_CHARACTERS:
            return self._encode_text(text, add_special_tokens)
        encode = partial(self._encode_long, text, add_special_tokens, most_tokens)
        return await self._in_turn(tenant, encode, patience_s)

    async def encode_chat(
        self,
        messages: list[dict[str, str]],
        add_generation_prompt: bool,
        *,
        tenant: str = "",
        most_tokens: int = 0,
        patience_s: float = FOR_EVER_S,
    ) -> list[int]:
        """The token ids of a conversation in the model's chat template.

        Raises:
            ApiError: 400 when the model has no chat template, the template does not take these messages, or there are
                far more tokens than ``most_tokens``; 429 and 504 as for a text.
        """
        if most_tokens and len(messages) > most_tokens:
            raise too_long(most_tokens, f"the conversation has {len(messages)} messages", "messages")
        if len(messages) <= MANY_MESSAGES and sum(len(each["content"]) for each in messages) <= LONG_TEXT_CHARACTERS:
            return self._encode_text(self._render(messages, add_generation_prompt), False)

        def encode() -> list[int]:
            return self._encode_long(self._render(messages, add_generation_prompt), False, most_tokens)

        return await self._in_turn(tenant, encode, patience_s)

    def decode(self, token_ids: list[int]) -> str:
        """Their text, special tokens and all."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def tokens(self, token_ids: list[int]) -> list[str]:
        """Each token's own text."""
        return [self._tokenizer.decode([token_id]) for token_id in token_ids]

    async def _in_turn(self, tenant: str, work: Callable[[], Result], patience_s: float) -> Result:
        try:
            async with asyncio.timeout(patience_s):
                return await self._threads.run(tenant, work)
        except TimeoutError as error:
            raise error_of(Outcome(kind=OutcomeKind.FAILED, reason=Reason.DEADLINE_EXCEEDED)) from error
        except TooMuchWaits as error:
            said = f"{MOST_WAITING} of your long texts wait to be tokenized; send fewer at a time"
            raise ApiError(429, said, "rate_limit_exceeded", retry_after_s=1.0) from error

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": add_generation_prompt}
        try:
            text: str = self._tokenizer.apply_chat_template(messages, **options)
        except (TemplateError, ValueError, TypeError) as error:
            raise invalid(f"the chat template can't render these messages: {error}", "messages") from error
        return text

    def _encode_long(self, text: str, add_special_tokens: bool, most_tokens: int) -> list[int]:
        """In a thread: a part of what may be too long first, and four times as much where that has few tokens."""
        num_characters = FIRST_CHARACTERS * most_tokens
        while 0 < num_characters < len(text):
            num_tokens = self._count_beside(text[:num_characters])
            if num_tokens > TOO_MANY_TIMES * most_tokens:
                raise too_long(most_tokens, f"the first {num_characters} characters of {len(text)} are {num_tokens}")
            num_characters *= 4
        return self._encode_beside(text, add_special_tokens)


def too_long(context_tokens: int, said: str, param: str = "prompt") -> ApiError:
    """A request that does not fit: how long it is, in words, and which field is at fault."""
    return invalid(f"the context is {context_tokens} tokens; {said}", param, "context_length_exceeded")


def check_conversation(fields: Any) -> None:
    """Refuses one of too many messages before each is looked at, which takes a gateway longer than all the rest.

    Args:
        fields: What a body says.

    Raises:
        ApiError: 400, it has more than are taken.
    """
    messages = fields.get("messages") if isinstance(fields, dict) else None
    if not isinstance(messages, list):
        return
    contents = (each.get("content") for each in messages if isinstance(each, dict))
    number = len(messages) + sum(len(each) for each in contents if isinstance(each, list))
    if number > MOST_MESSAGES:
        raise invalid(f"{number} messages, and parts of messages; at most {MOST_MESSAGES} are taken", "messages")


def check_lengths(fields: Any, context_tokens: int) -> None:
    """Refuses lists that have too many entries for any engine, likewise.

    Args:
        fields: What a body says.
        context_tokens: That fit; 0: not known yet.

    Raises:
        ApiError: 400, naming the field.
    """
    check_conversation(fields)
    if not isinstance(fields, dict):
        return
    for name, most in MOST_ENTRIES.items():
        entries = fields.get(name)
        if isinstance(entries, list | dict) and len(entries) > most:
            raise invalid(f"{name} has {len(entries)} entries; at most {most} are taken", name)
    _check_bad_words(fields.get("bad_words"))
    if not context_tokens:
        return
    prompt = fields.get("prompt")
    if isinstance(prompt, list):
        _check_length(prompt, context_tokens)
        for each in prompt:
            if isinstance(each, list):
                _check_length(each, context_tokens)


def _check_bad_words(words: Any) -> None:
    texts = [each for each in words if isinstance(each, str)] if isinstance(words, list) else []
    num_bytes = sum(len(each.encode(errors="surrogatepass")) for each in texts)
    if num_bytes > MOST_BAD_WORDS_BYTES:
        raise invalid(f"bad_words have {num_bytes} bytes; at most {MOST_BAD_WORDS_BYTES} are taken", "bad_words")


def _check_length(prompt: list[Any], context_tokens: int) -> None:
    if len(prompt) > context_tokens:
        raise too_long(context_tokens, f"prompt has {len(prompt)} entries", "prompt")


Encoder = Callable[[str, bool], list[int]]
"""Of a text, and whether special tokens are added."""


def _encoder(tokenizer: Any) -> Encoder:
    """Makes token ids as the tokenizer does, without its wrapping where there is nothing to that."""
    rust = _plain_rust(tokenizer)
    if rust is None:
        return lambda text, specials: tokenizer.encode(text, add_special_tokens=specials)
    return lambda text, specials: rust.encode(text, add_special_tokens=specials).ids


def _encoder_beside(tokenizer: Any) -> Encoder:
    """The same for threads: ``tokenizers`` lets go of Python's lock for batches, and for nothing else."""
    rust = _plain_rust(tokenizer)
    if rust is None:
        return _encoder(tokenizer)
    return lambda text, specials: rust.encode_batch_fast([text], add_special_tokens=specials)[0].ids


def _counter_beside(tokenizer: Any) -> Callable[[str], int]:
    """How many ids there are, likewise; none is made, which takes Python's lock."""
    rust = _plain_rust(tokenizer)
    if rust is None:
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
    return lambda text: len(rust.encode_batch_fast([text], add_special_tokens=False)[0])


def _plain_rust(tokenizer: Any) -> Any:
    """What is beneath the tokenizer, where that is all there is to it."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    return None if rust is None or rust.truncation is not None or rust.padding is not None else rust


def _load(model_path: str) -> Any:
    """The tokenizer that ``AutoTokenizer`` would choose, without torch where the checkpoint names it.

    Finding the class by way of the model's type imports torch, which takes a gateway two seconds and 200 MB.
    """
    config = Path(model_path) / "tokenizer_config.json"
    if config.is_file() and json.loads(config.read_text()).get("tokenizer_class") in PLAIN_TOKENIZERS:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes a second; only gateways need it

        return PreTrainedTokenizerFast.from_pretrained(model_path)
    from transformers import AutoTokenizer  # noqa: PLC0415

    return AutoTokenizer.from_pretrained(model_path)

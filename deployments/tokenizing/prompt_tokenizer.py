"""Text to token ids, once, in the gateway; the engines get token ids."""

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

import msgspec
from jinja2 import TemplateError

from deployments.openai.engine_limits import too_long
from deployments.openai.errors import ApiError, error_of, invalid
from deployments.tokenizing.checkpoint import load, plain_rust
from deployments.tokenizing.encoding_messages import Encoded, Wanted
from deployments.tokenizing.encoding_process import EncodingFailed, EncodingLost, Source
from deployments.tokenizing.encoding_program import NUM_AT_A_TIME
from deployments.tokenizing.fair_turns import FairTurns, TooMuchWaits
from deployments.tokenizing.hedged_encoding import HedgedEncoding
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind

LONG_TEXT_CHARACTERS = 20_000
"""A longer text is encoded by another process, so that it does not hold up other requests' tokens."""
MANY_MESSAGES = 200
"""A conversation of more messages is put into the chat template in a thread."""
MOST_WAITING = 64
"""Long texts of one tenant that wait for their turn at one model of a gateway."""
FIRST_CHARACTERS = 2
"""For each token that fits: so much of a longer text is encoded first, and then four times as much."""
TOO_MANY_TIMES = 1.25
"""Who has so many times the tokens that fit in a part of its text has too many in all of it, wherever that is cut."""
FOR_EVER_S = 1e9
AGAIN_S = 1.0


class TokenList(NamedTuple):
    """Token ids that go to a client.

    Args:
        num_tokens: How many.
        ids: As a list in JSON.
    """

    num_tokens: int
    ids: bytes


class PromptTokenizer:
    """The model's tokenizer and chat template.

    Long texts wait for their turn, tenant by tenant. Of one that can't fit no more is encoded than it takes to say so.

    Args:
        model_path: Folder of the checkpoint.
    """

    def __init__(self, model_path: str) -> None:
        self._tokenizer = load(model_path)
        self.vocabulary_tokens = len(self._tokenizer)
        self._encode_text = _encoder(self._tokenizer)
        self._encoding = HedgedEncoding(Source(self._tokenizer, model_path))
        self._turns = FairTurns(NUM_AT_A_TIME, MOST_WAITING)

    def close(self) -> None:
        """Encodes no more long texts."""
        self._encoding.close()

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
            ApiError: 400, there are far more, or the tokenizer can't encode it; 429, too many of its tenant's wait;
                503, it can't be encoded now; 504, it has waited so long.
        """
        if len(text) <= LONG_TEXT_CHARACTERS:
            return self._encode_text(text, add_special_tokens)
        encode = partial(self._encode_long, text, add_special_tokens, most_tokens, Wanted.IDS)
        return _ids_of(await self._in_turn(tenant, encode, patience_s))

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
                more messages than ``most_tokens``; and as for a text.
        """
        if most_tokens and len(messages) > most_tokens:
            raise too_long(most_tokens, f"the conversation has {len(messages)} messages", "messages")
        if _is_short(messages):
            return self._encode_text(self._render(messages, add_generation_prompt), False)
        encode = partial(self._encode_long_chat, messages, add_generation_prompt, most_tokens, Wanted.IDS)
        return _ids_of(await self._in_turn(tenant, encode, patience_s))

    async def list_tokens(
        self, text: str, add_special_tokens: bool = True, *, tenant: str = "", patience_s: float = FOR_EVER_S
    ) -> TokenList:
        """A text's token ids for a client, however many there are.

        Raises:
            ApiError: As for :meth:`encode`.
        """
        if len(text) <= LONG_TEXT_CHARACTERS:
            return _listed(self._encode_text(text, add_special_tokens))
        encode = partial(self._encode_long, text, add_special_tokens, 0, Wanted.JSON)
        encoded = await self._in_turn(tenant, encode, patience_s)
        return TokenList(encoded.num_tokens, encoded.ids)

    async def list_chat_tokens(
        self,
        messages: list[dict[str, str]],
        add_generation_prompt: bool,
        *,
        tenant: str = "",
        patience_s: float = FOR_EVER_S,
    ) -> TokenList:
        """The same of a conversation.

        Raises:
            ApiError: As for :meth:`encode_chat`.
        """
        if _is_short(messages):
            return _listed(self._encode_text(self._render(messages, add_generation_prompt), False))
        encode = partial(self._encode_long_chat, messages, add_generation_prompt, 0, Wanted.JSON)
        encoded = await self._in_turn(tenant, encode, patience_s)
        return TokenList(encoded.num_tokens, encoded.ids)

    def decode(self, token_ids: list[int]) -> str:
        """Their text, special tokens and all."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def tokens(self, token_ids: list[int]) -> list[str]:
        """Each token's own text."""
        return [self._tokenizer.decode([token_id]) for token_id in token_ids]

    async def _in_turn(
        self, tenant: str, encode: Callable[[], Coroutine[Any, Any, Encoded]], patience_s: float
    ) -> Encoded:
        try:
            async with asyncio.timeout(patience_s):
                return await self._turns.run(tenant, encode)
        except TimeoutError as error:
            raise error_of(Outcome(kind=OutcomeKind.FAILED, reason=Reason.DEADLINE_EXCEEDED)) from error
        except TooMuchWaits as error:
            said = f"{MOST_WAITING} of your long texts wait to be tokenized; send fewer at a time"
            raise ApiError(429, said, "rate_limit_exceeded", retry_after_s=AGAIN_S) from error
        except EncodingFailed as error:
            raise invalid(f"the tokenizer can't encode this text: {error}") from error
        except EncodingLost as error:
            said = f"what tokenizes texts of more than {LONG_TEXT_CHARACTERS} characters has failed; try again"
            raise ApiError(503, said, "tokenizer_unavailable", retry_after_s=AGAIN_S) from error

    async def _encode_long(self, text: str, add_special_tokens: bool, most_tokens: int, wanted: Wanted) -> Encoded:
        """A part of what may be too long first, and four times as much where that has few tokens."""
        num_characters = FIRST_CHARACTERS * most_tokens
        while 0 < num_characters < len(text):
            part = await self._encoding.encode(text[:num_characters], False, Wanted.COUNT)
            if part.num_tokens > TOO_MANY_TIMES * most_tokens:
                said = f"the first {num_characters} characters of {len(text)} are {part.num_tokens}"
                raise too_long(most_tokens, said)
            num_characters *= 4
        return await self._encoding.encode(text, add_special_tokens, wanted)

    async def _encode_long_chat(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, most_tokens: int, wanted: Wanted
    ) -> Encoded:
        text = await asyncio.to_thread(self._render, messages, add_generation_prompt)
        return await self._encode_long(text, False, most_tokens, wanted)

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": add_generation_prompt}
        try:
            text: str = self._tokenizer.apply_chat_template(messages, **options)
        except (TemplateError, ValueError, TypeError) as error:
            raise invalid(f"the chat template can't render these messages: {error}", "messages") from error
        return text


def _is_short(messages: list[dict[str, str]]) -> bool:
    """Whether it is no more to make a conversation's text and encode it than a short text."""
    return len(messages) <= MANY_MESSAGES and sum(len(each["content"]) for each in messages) <= LONG_TEXT_CHARACTERS


def _ids_of(encoded: Encoded) -> list[int]:
    ids = array("I")
    ids.frombytes(encoded.ids)
    return ids.tolist()


def _listed(ids: list[int]) -> TokenList:
    return TokenList(len(ids), msgspec.json.encode(ids))


Encoder = Callable[[str, bool], list[int]]
"""Of a text, and whether special tokens are added."""


def _encoder(tokenizer: Any) -> Encoder:
    """Makes token ids as the tokenizer does, without its wrapping where there is nothing to that."""
    rust = plain_rust(tokenizer)
    if rust is None:
        return lambda text, specials: tokenizer.encode(text, add_special_tokens=specials)
    return lambda text, specials: rust.encode(text, add_special_tokens=specials).ids

"""Text to token ids, once, in the gateway; the engines get token ids."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from deployments.openai.errors import invalid

LONG_TEXT_CHARACTERS = 20_000
"""A longer text is tokenized in a thread, so that it does not hold up other requests' tokens."""
PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names under which transformers saves a tokenizer that is all in ``tokenizer.json``."""


class PromptTokenizer:
    """The model's tokenizer and chat template.

    Args:
        model_path: Folder of the checkpoint.
    """

    def __init__(self, model_path: str) -> None:
        self._tokenizer = _load(model_path)
        self.vocabulary_tokens = len(self._tokenizer)
        self._encode_text = _encoder(self._tokenizer)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The text's token ids."""
        if len(text) > LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(self._encode, text, add_special_tokens)
        return self._encode(text, add_special_tokens)

    async def encode_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> list[int]:
        """The token ids of a conversation in the model's chat template.

        Raises:
            ApiError: 400 when the model has no chat template or the template does not take these messages.
        """
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": add_generation_prompt}
        try:
            text: str = self._tokenizer.apply_chat_template(messages, **options)
        except (TemplateError, ValueError, TypeError) as error:
            raise invalid(f"the chat template can't render these messages: {error}", "messages") from error
        return await self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: list[int]) -> str:
        """Their text, special tokens and all."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def tokens(self, token_ids: list[int]) -> list[str]:
        """Each token's own text."""
        return [self._tokenizer.decode([token_id]) for token_id in token_ids]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        encoded: list[int] = self._encode_text(text, add_special_tokens)
        return encoded


def _encoder(tokenizer: Any) -> Callable[[str, bool], list[int]]:
    """Makes token ids as the tokenizer does, without its wrapping where there is nothing to that."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is None or rust.truncation is not None or rust.padding is not None:
        return lambda text, specials: tokenizer.encode(text, add_special_tokens=specials)
    return lambda text, specials: rust.encode(text, add_special_tokens=specials).ids


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

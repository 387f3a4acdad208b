"""Text to token ids, once, in the gateway; the engines get token ids."""

import asyncio
from typing import Any

from jinja2 import TemplateError

from deployments.openai_errors import invalid

LONG_TEXT_CHARACTERS = 20_000
"""A longer text is tokenized in a thread, so that it does not hold up other requests' tokens."""


class PromptTokenizer:
    """The model's tokenizer and chat template.

    Args:
        model_path: Folder of the checkpoint.
    """

    def __init__(self, model_path: str) -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 - takes torch and seconds; only gateways need it

        self._tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.vocabulary_tokens = len(self._tokenizer)

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

    def tokens(self, token_ids: list[int]) -> list[str]:
        """Each token's own text."""
        return [self._tokenizer.decode([token_id]) for token_id in token_ids]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        encoded: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return encoded

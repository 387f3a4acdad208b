"""Requests for what a tokenizer alone answers."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deployments.openai.requests import Message, TokenIds
from deployments.openai.terms import Text
from deployments.openai.validation import Unserved


class TokenizeRequest(BaseModel):
    """``POST /tokenize``: a text, or the messages of a chat.

    Args:
        model: The deployment's model.
        prompt: A text.
        messages: A conversation; one of the two has to be there.
        add_special_tokens: Whether a text gets the tokens that the tokenizer puts around it.
        add_generation_prompt: Whether the template opens the assistant's turn.
    """

    model_config = ConfigDict(extra="allow")

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True

    @model_validator(mode="before")
    @classmethod
    def _one_of_the_two(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and (fields.get("prompt") is None) == (fields.get("messages") is None):
            raise Unserved("prompt", "give either prompt or messages")
        return fields


class DetokenizeRequest(BaseModel):
    """``POST /detokenize``: token ids.

    Args:
        model: The deployment's model.
        tokens: The ids.
    """

    model_config = ConfigDict(extra="allow")

    model: Text | None = None
    tokens: TokenIds

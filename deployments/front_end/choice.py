"""Which requests take the way through vLLM's layer: those that use what the gateway's own does not serve."""

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any, Literal, Protocol

from fastapi import Request

from deployments.config import AppConfig, ModelConfig, VllmFrontEndConfig
from deployments.front_end.exchange import Exchange
from deployments.openai.errors import ApiError, invalid
from deployments.openai.requests import UNSERVED, ChatRequest, CompletionRequest, SamplingFields
from deployments.openai.terms import TermsFields

OwnKind = Literal["completion", "chat"]
"""Endpoints that the gateway's own layer has, too."""
Kind = Literal[OwnKind, "response", "message", "count_tokens", "embedding", "score", "rerank"]
"""Endpoints, by what they give."""
PATHS: dict[Kind, str] = {
    "completion": "/v1/completions",
    "chat": "/v1/chat/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
    "embedding": "/v1/embeddings",
    "score": "/v1/score",
    "rerank": "/v1/rerank",
}
Content = bytes | AsyncGenerator[bytes, None]
"""A whole body, or the events of a stream."""
OWN: dict[OwnKind, type[SamplingFields]] = {"completion": CompletionRequest, "chat": ChatRequest}
"""What the gateway's own layer reads."""
NEVER = frozenset(
    "background cache_salt chat_template data_parallel_rank ec_transfer_params kv_transfer_params model request_id"
    " session_id use_beam_search vllm_xargs".split()
)
"""Fields of vLLM's that do not lead there: they are refused, or say nothing to a deployment of many engines."""
MESSAGE_KEYS = {"role", "content"}
TEXT_PARTS = {"text", "refusal", "thinking"}


class FrontEnd(Protocol):
    """A way in beside the gateway's own."""

    def takes(self, kind: OwnKind, fields: Any) -> bool:
        """Whether a request takes it."""
        ...

    async def answer(self, kind: Kind, fields: Any, exchange: Exchange, request: Request) -> Content:
        """The response's body, or its events once the first token has come.

        Args:
            kind: Which endpoint.
            fields: The body.
            exchange: Where prompts are handed over.
            request: Its headers.

        Raises:
            ApiError: It is refused, or failed before its first token.
        """
        ...

    def close(self) -> None:
        """Ends what runs for it."""
        ...


class NoFrontEnd:
    """There is none."""

    def takes(self, kind: OwnKind, fields: Any) -> bool:
        """Nothing does."""
        return False

    async def answer(self, kind: Kind, fields: Any, exchange: Exchange, request: Request) -> Content:
        """Only what the gateway's own layer has no endpoint for comes here.

        Raises:
            ApiError: 404.
        """
        message = f"{request.url.path} needs gateway.vllm_front_end, which this deployment does not have"
        raise ApiError(404, message, "not_found")

    def close(self) -> None:
        """Nothing runs."""


def front_end_of(config: AppConfig) -> FrontEnd:
    """The front end that a configuration asks for.

    Raises:
        ConfigError: vLLM knows no such parser.
    """
    wanted = config.gateway.vllm_front_end
    if wanted is None:
        return NoFrontEnd()
    runner = {"runner": "pooling"} if config.pools_prompts else {}
    return _vllm(config.model, {**config.engine.args, **runner}, wanted)


def _vllm(model: ModelConfig, engine_args: dict[str, Any], wanted: VllmFrontEndConfig) -> FrontEnd:
    from deployments.front_end.vllm_front_end import VllmFrontEnd  # noqa: PLC0415 - takes 400 MB

    return VllmFrontEnd(model.id, model.resolved_path(), engine_args, wanted)


def for_vllm(fields: Any, known: Collection[str]) -> dict[str, Any]:
    """What vLLM's layer is given of a body: not what a request is served under, nor what it would ask of one engine.

    Args:
        fields: The body.
        known: Fields that vLLM's layer reads at that endpoint.

    Raises:
        ApiError: 400, the body asks for what neither way serves.
    """
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object")
    for name in fields.keys() & UNSERVED.keys():
        if (name in NEVER or name not in known) and not _is_neutral(name, fields[name], None):
            raise invalid(UNSERVED[name][1], name, "unsupported_value")
    _check_parts(fields.get("messages"))
    left_out = (NEVER | TermsFields.model_fields.keys()) - {"model"}
    return {name: value for name, value in fields.items() if name not in left_out}


def check_number(prompt: Any, choices: int | None, most: int) -> None:
    """Checks how many requests of the dispatcher's one request asks for.

    Args:
        prompt: What is to be completed: text, token ids, or several of either.
        choices: Answers to each.
        most: So many at most.

    Raises:
        ApiError: 400, prompts times choices are more.
    """
    num_prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    number = num_prompts * (choices or 1)
    if number > most:
        field = "prompt" if num_prompts > 1 else "n"
        raise invalid(f"{number} answers are asked for at once; at most {most} are given", field)


def _check_parts(messages: Any) -> None:
    for message in messages if isinstance(messages, list) else ():
        parts = message.get("content") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind not in TEXT_PARTS:
                sentence = f"content parts of type {kind} are not served; send text"
                raise invalid(sentence, "messages", "unsupported_value")


def more_fields(kind: OwnKind, vllms: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM's layer serves of an endpoint and the gateway's own does not.

    Args:
        kind: Which endpoint.
        vllms: vLLM's fields with their defaults.
    """
    own = OWN[kind].model_fields.keys() - UNSERVED.keys() | NEVER
    return {name: default for name, default in vllms.items() if name not in own}


def uses(kind: OwnKind, fields: Any, more: Mapping[str, Any]) -> bool:
    """Whether a request uses any of it; a value that changes nothing does not."""
    if not isinstance(fields, dict):
        return False
    if any(name in more and not _is_neutral(name, value, more[name]) for name, value in fields.items()):
        return True
    if kind == "completion":
        prompt = fields.get("prompt")
        return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    messages = fields.get("messages")
    return isinstance(messages, list) and any(map(_is_more_than_text, messages))


def _is_neutral(name: str, value: Any, default: Any) -> bool:
    neutral = (None, default, *UNSERVED.get(name, ((), ""))[0])
    return any(value == each and type(value) is type(each) for each in neutral)


def _is_more_than_text(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    if any(value is not None for key, value in message.items() if key not in MESSAGE_KEYS):
        return True
    parts = message.get("content")
    return isinstance(parts, list) and any(isinstance(part, dict) and part.get("type") != "text" for part in parts)

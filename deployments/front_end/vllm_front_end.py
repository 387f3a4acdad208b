"""vLLM's serving classes for one gateway, made as its own API server makes them."""

from collections.abc import AsyncGenerator, Collection
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ValidationError
from vllm import AsyncEngineArgs
from vllm.config import StructuredOutputsConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMError
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tool_parsers import ToolParserManager

from deployments.config import VllmFrontEndConfig
from deployments.front_end.choice import Content, Kind, for_vllm, more_fields, uses
from deployments.front_end.dispatcher_client import DispatcherClient
from deployments.front_end.exchange import EXCHANGE, Exchange
from deployments.openai.errors import ApiError
from deployments.openai.validation import api_error_of
from policies.errors import ConfigError

CLIENTS_FAULTS = (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError)
"""What vLLM's layer raises of a request that it can't serve."""


class VllmFrontEnd:
    """Serves what :mod:`deployments.openai` alone does not.

    Args:
        model_id: The model, as clients call it.
        model_path: Folder of the checkpoint.
        engine_args: What engines are started with; as much of it as says what the model is.
        config: What is asked of vLLM's layer.

    Raises:
        ConfigError: A parser that vLLM has not.
        Exception: Whatever vLLM raises of a model that it does not know.
    """

    def __init__(self, model_id: str, model_path: str, engine_args: dict[str, Any], config: VllmFrontEndConfig) -> None:
        _check_parser("tool_call_parser", config.tool_call_parser, ToolParserManager.list_registered())
        _check_parser("reasoning_parser", config.reasoning_parser, ReasoningParserManager.list_registered())
        arguments = AsyncEngineArgs(model=model_path, **engine_args)
        reasoning = StructuredOutputsConfig(reasoning_parser=config.reasoning_parser or "")
        client = DispatcherClient(
            VllmConfig(model_config=arguments.create_model_config(), structured_outputs_config=reasoning)
        )
        models = OpenAIServingModels(client, [BaseModelPath(model_id, model_path)])
        self._client = client
        self._chat, self._completion = _serving(client, models, config)
        self._takes_all_chats = config.takes_all_chats
        self._more = {
            "completion": more_fields("completion", _defaults(CompletionRequest)),
            "chat": more_fields("chat", _defaults(ChatCompletionRequest)),
        }

    def takes(self, kind: Kind, fields: Any) -> bool:
        """Whether a request uses what the gateway's own layer does not serve, or would serve otherwise."""
        return (kind == "chat" and self._takes_all_chats) or uses(kind, fields, self._more[kind])

    async def answer(self, kind: Kind, fields: Any, exchange: Exchange, request: Request) -> Content:
        """See :class:`deployments.front_end.choice.FrontEnd`."""
        EXCHANGE.set(exchange)
        try:
            answer = await self._ask(kind, for_vllm(fields), request)
        except ValidationError as error:
            raise api_error_of(error) from error
        except CLIENTS_FAULTS as error:
            raise _api_error(create_error_response(error)) from error
        if isinstance(answer, ErrorResponse):
            raise _api_error(answer)
        if isinstance(answer, BaseModel):
            return answer.model_dump_json().encode()
        await exchange.begun()
        return _events(answer, exchange)

    def close(self) -> None:
        """Frees the renderer's threads."""
        self._client.shutdown()

    async def _ask(
        self, kind: Kind, fields: Any, request: Request
    ) -> AsyncGenerator[str, None] | BaseModel | ErrorResponse:
        if kind == "chat":
            return await self._chat.create_chat_completion(ChatCompletionRequest.model_validate(fields), request)
        return await self._completion.create_completion(CompletionRequest.model_validate(fields), request)


def _check_parser(field: str, name: str | None, known: Collection[str]) -> None:
    if name is not None and name not in known:
        raise ConfigError(f"gateway.vllm_front_end.{field}", name, ", ".join(sorted(known)))


def _serving(
    client: DispatcherClient, models: OpenAIServingModels, config: VllmFrontEndConfig
) -> tuple[OpenAIServingChat, OpenAIServingCompletion]:
    shared = {
        "request_logger": None,
        "chat_template": load_chat_template(config.chat_template),
        "chat_template_content_format": "auto",
        "enable_auto_tools": config.enable_auto_tool_choice,
        "tool_parser": config.tool_call_parser,
        "reasoning_parser": config.reasoning_parser or "",
    }
    renderer = OnlineRenderer(client.model_config, client.renderer, **shared)
    renderer.warmup()
    chat = OpenAIServingChat(
        client, models, "assistant", online_renderer=renderer, enable_prompt_tokens_details=True, **shared
    )
    completion = OpenAIServingCompletion(
        client, models, online_renderer=renderer, request_logger=None, enable_prompt_tokens_details=True
    )
    return chat, completion


async def _events(answer: AsyncGenerator[str, None], exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """The stream's events; one that breaks off ends with our own error, and without ``[DONE]``."""
    async for event in answer:
        if exchange.failure is not None:
            failure = exchange.failure
            assert isinstance(failure, ApiError)
            yield b"data: " + failure.body() + b"\n\n"
            return
        yield event.encode()


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in model.model_fields.items()}


def _api_error(said: ErrorResponse) -> ApiError:
    """vLLM's error in the shape that all of ours have."""
    status = said.error.code
    code = {404: "model_not_found", 501: "unsupported_value"}.get(status, "invalid_value")
    if status >= 500 and status != 501:
        code = "internal_error"
    return ApiError(400 if status == 501 else status, said.error.message, code, said.error.param)

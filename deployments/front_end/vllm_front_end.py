"""vLLM's serving classes for one gateway, made as its own API server makes them."""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from vllm import AsyncEngineArgs
from vllm.config import StructuredOutputsConfig, VllmConfig
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMError
from vllm.lora.request import LoRARequest
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tool_parsers import ToolParserManager

from deployments.config import VllmFrontEndConfig
from deployments.front_end.choice import (
    PATHS,
    Content,
    Kind,
    OwnKind,
    check_number,
    for_vllm,
    more_fields,
    uses,
)
from deployments.front_end.dispatcher_client import DispatcherClient
from deployments.front_end.endpoint import Endpoint
from deployments.front_end.exchange import EXCHANGE, Exchange
from deployments.front_end.pooling_endpoints import pooling_endpoints
from deployments.openai.errors import ApiError, anthropic_body, invalid
from deployments.openai.validation import api_error_of
from engines.contract import Adapter
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
        ConfigError: A parser that vLLM has not, or that wants tokens which the model has not.
        Exception: Whatever vLLM raises of a model that it does not know.
    """

    def __init__(self, model_id: str, model_path: str, engine_args: dict[str, Any], config: VllmFrontEndConfig) -> None:
        _check_parser("tool_call_parser", config.tool_call_parser, ToolParserManager.list_registered())
        _check_parser("reasoning_parser", config.reasoning_parser, ReasoningParserManager.list_registered())
        arguments = AsyncEngineArgs(model=model_path, served_model_name=model_id, **engine_args)
        reasoning = StructuredOutputsConfig(reasoning_parser=config.reasoning_parser or "")
        client = DispatcherClient(
            VllmConfig(model_config=arguments.create_model_config(), structured_outputs_config=reasoning)
        )
        models = OpenAIServingModels(client, [BaseModelPath(model_id, model_path)])
        self._client, self._models = client, models
        self._pools_prompts = client.model_config.runner_type == "pooling"
        try:
            self._endpoints = (pooling_endpoints if self._pools_prompts else _endpoints)(client, models, config)
        except TypeError as error:  # vLLM's word for a parser whose tokens the model has not
            given = config.model_dump(exclude_none=True)
            raise ConfigError("gateway.vllm_front_end", given, f"parsers that fit the model: {error}") from error
        self._max_requests = config.max_requests
        self._takes_all_chats = config.takes_all_chats
        self._more = {
            "completion": more_fields("completion", _defaults(CompletionRequest)),
            "chat": more_fields("chat", _defaults(ChatCompletionRequest)),
        }

    def takes(self, kind: OwnKind, fields: Any) -> bool:
        """Whether a request uses what the gateway's own layer does not serve, or would serve otherwise."""
        takes_all = self._pools_prompts or (kind == "chat" and self._takes_all_chats)
        return takes_all or uses(kind, fields, self._more[kind])

    async def answer(self, kind: Kind, fields: Any, exchange: Exchange, request: Request) -> Content:
        """See :class:`deployments.front_end.choice.FrontEnd`."""
        endpoint = self._endpoint(kind)
        EXCHANGE.set(exchange)
        self._name(exchange.adapter)
        asked = _read(endpoint, for_vllm(fields, endpoint.known))
        try:
            check_number(getattr(asked, "prompt", None), getattr(asked, "n", None), self._max_requests)
            answer = await endpoint.create(asked, request)
        except CLIENTS_FAULTS as error:
            raise _api_error(create_error_response(error)) from error
        if isinstance(answer, ErrorResponse):
            raise _api_error(answer)
        if isinstance(answer, AsyncGenerator):
            return await _begun(answer, endpoint, exchange)
        return endpoint.body(answer)

    def _endpoint(self, kind: Kind) -> Endpoint:
        """The endpoint, where the model has it."""
        if kind in self._endpoints:
            return self._endpoints[kind]
        served = ", ".join(PATHS[each] for each in self._endpoints if each in PATHS)
        raise invalid(f"{PATHS[kind]} is not served by this model; it serves {served}", "model", "unsupported_value")

    def _name(self, adapter: Adapter) -> None:
        """vLLM's layer knows an adapter as a model of that name; where it is is the engines' affair."""
        if adapter and adapter.name not in self._models.lora_requests:
            number = len(self._models.lora_requests) + 1
            self._models.lora_requests[adapter.name] = LoRARequest(adapter.name, number, adapter.path)

    def close(self) -> None:
        """Frees the renderer's threads."""
        self._client.shutdown()


def _read(endpoint: Endpoint, fields: dict[str, Any]) -> Any:
    """A request of vLLM's. What its validators raise is raised by what the body says, whatever it is."""
    try:
        return endpoint.read(fields)
    except ApiError:
        raise
    except ValidationError as error:
        raise api_error_of(error) from error
    except CLIENTS_FAULTS as error:
        raise _api_error(create_error_response(error)) from error
    except Exception as error:
        raise invalid(f"a field has a wrong type: {type(error).__name__}, {str(error)[:200]}") from error


def _check_parser(field: str, name: str | None, known: Collection[str]) -> None:
    if name is not None and name not in known:
        raise ConfigError(f"gateway.vllm_front_end.{field}", name, ", ".join(sorted(known)))


def _endpoints(
    client: DispatcherClient, models: OpenAIServingModels, config: VllmFrontEndConfig
) -> dict[Kind, Endpoint]:
    parsing: dict[str, Any] = {
        "request_logger": None,
        "chat_template": load_chat_template(config.chat_template),
        "chat_template_content_format": "auto",
        "enable_auto_tools": config.enable_auto_tool_choice,
        "tool_parser": config.tool_call_parser,
        "reasoning_parser": config.reasoning_parser or "",
    }
    renderer = OnlineRenderer(client.model_config, client.renderer, **parsing)
    renderer.warmup()
    shared = {"online_renderer": renderer, "enable_prompt_tokens_details": True}
    chat = OpenAIServingChat(client, models, "assistant", **shared, **parsing)
    completion = OpenAIServingCompletion(client, models, request_logger=None, **shared)
    responses = OpenAIServingResponses(client, models, **shared, **parsing)
    messages = AnthropicServingMessages(client, models, "assistant", **shared, **parsing)
    return {
        "completion": Endpoint(CompletionRequest, completion.create_completion),
        "chat": Endpoint(ChatCompletionRequest, chat.create_chat_completion),
        "response": Endpoint(
            ResponsesRequest,
            responses.create_responses,
            body=lambda answer: answer.model_dump_json(by_alias=True).encode(),
            event=_typed_event,
            error=_response_error,
        ),
        "message": Endpoint(
            AnthropicMessagesRequest,
            messages.create_messages,
            body=_without_nulls,
            error=lambda error: b"event: error\ndata: " + anthropic_body(error) + b"\n\n",
        ),
        "count_tokens": Endpoint(AnthropicCountTokensRequest, messages.count_tokens, body=_without_nulls),
    }


async def _begun(answer: AsyncGenerator[Any, None], endpoint: Endpoint, exchange: Exchange) -> Content:
    """The events, once the first token is among them: a failure before that is an error with a status of its own."""
    ahead = []
    while not exchange.has_begun:
        try:
            ahead.append(endpoint.event(await anext(answer)))
        except StopAsyncIteration:
            break
        if exchange.failure is not None:
            await answer.aclose()
            raise exchange.failure
    return _events(ahead, answer, endpoint, exchange)


async def _events(
    ahead: list[bytes], answer: AsyncGenerator[Any, None], endpoint: Endpoint, exchange: Exchange
) -> AsyncGenerator[bytes, None]:
    """One that breaks off ends with an error of ours, and without what says that all is there."""
    yield b"".join(ahead)
    async with aclosing(answer):
        async for event in answer:
            if exchange.failure is not None:
                yield endpoint.error(exchange.failure)
                return
            yield endpoint.event(event)


def _typed_event(event: BaseModel) -> bytes:
    """An event of the Responses API, which has its type before it, too."""
    kind = getattr(event, "type", "unknown")
    return f"event: {kind}\ndata: {event.model_dump_json(by_alias=True)}\n\n".encode()


def _response_error(error: ApiError) -> bytes:
    said = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + msgspec.json.encode(said) + b"\n\n"


def _without_nulls(answer: BaseModel) -> bytes:
    return answer.model_dump_json(exclude_none=True).encode()


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in model.model_fields.items()}


def _api_error(said: ErrorResponse) -> ApiError:
    """vLLM's error in the shape that all of ours have."""
    status = said.error.code
    code = {404: "not_found", 501: "unsupported_value"}.get(status, "invalid_value")
    if said.error.param == "input_tokens":
        code = "context_length_exceeded"
    if status >= 500 and status != 501:
        code = "internal_error"
    return ApiError(400 if status == 501 else status, said.error.message, code, said.error.param)

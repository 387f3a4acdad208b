"""vLLM's endpoints for models that make a vector of a text, or score two: embeddings, scores, reranking."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from vllm.config import ModelConfig
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.embed.serving import ServingEmbedding
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.pooling.scoring.serving import ServingScores
from vllm.renderers.chat_utils import ChatTemplateConfig, load_chat_template

from deployments.config import VllmFrontEndConfig
from deployments.front_end.choice import Kind
from deployments.front_end.dispatcher_client import DispatcherClient
from deployments.front_end.endpoint import Endpoint
from deployments.openai.errors import invalid
from policies.errors import ConfigError

TASKS = {"bi-encoder": "embed", "cross-encoder": "classify"}
"""What a model is asked for that scores in such a way."""
Create = Callable[[Any, Request], Awaitable[Any]]
TEXT_FORMATS = ("float", "base64")


def task_of(config: ModelConfig) -> str:
    """What engines of a model are asked for.

    Raises:
        ConfigError: It gives a vector of each token, which is not served.
    """
    task: str = (config.pooler_config and config.pooler_config.task) or TASKS.get(config.score_type, config.score_type)
    if task not in TASKS.values():
        raise ConfigError("model.path", config.model, f"a model that embeds or scores whole texts; this is for {task}")
    return task


def pooling_endpoints(
    client: DispatcherClient, models: OpenAIServingModels, config: VllmFrontEndConfig
) -> dict[Kind, Endpoint]:
    """Those that a model has: each that embeds also scores, by how near two vectors are.

    Raises:
        ConfigError: As :func:`task_of`.
    """
    task = task_of(client.model_config)
    shared: dict[str, Any] = {
        "request_logger": None,
        "chat_template_config": ChatTemplateConfig(chat_template=load_chat_template(config.chat_template)),
    }
    endpoints: dict[Kind, Endpoint] = {}
    if task == "embed":
        embedding = ServingEmbedding(client, models, **shared)

        async def embed(asked: Any, request: Request) -> JSONResponse:
            if asked.encoding_format not in TEXT_FORMATS:
                message = f"encoding_format must be float or base64, got {asked.encoding_format!r}"
                raise invalid(message, "encoding_format", "unsupported_value")
            response: JSONResponse = await embedding(asked, request)
            return response

        endpoints["embedding"] = Endpoint(EmbeddingRequest, _limited(embed, config.max_inputs), body=_body)
    if task == "embed" or getattr(client.model_config.hf_config, "num_labels", 0) == 1:
        serving = ServingScores(client, models, supported_tasks=(task,), **shared)
        scores = _limited(serving, config.max_inputs)
        endpoints["score"] = Endpoint(ScoreRequest, scores, body=_body)
        endpoints["rerank"] = Endpoint(RerankRequest, scores, body=_body)
    return endpoints


def _limited(create: Create, most: int) -> Create:
    """Takes so many texts at most, each of which is a request of the dispatcher's."""

    async def create_if_few(asked: Any, request: Request) -> JSONResponse:
        for name, value in vars(asked).items():
            if isinstance(value, list) and len(value) > most and not isinstance(value[0], int):
                raise invalid(f"{name} has {len(value)} texts; at most {most} are taken at once", name)
        response: JSONResponse = await create(asked, request)
        return response

    return create_if_few


def _body(response: JSONResponse) -> bytes:
    return bytes(response.body)

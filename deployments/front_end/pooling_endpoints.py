"""vLLM's endpoints for models that make a vector of a text, or score two: embeddings, scores, reranking."""

from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
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
MAX_PAIRED_CHARS = 8 << 20
"""Of all pairs together, however often a query is in them."""
_EMBEDDING: TypeAdapter[Any] = TypeAdapter(EmbeddingRequest)
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

        reader = partial(_embedding_request, most=config.max_inputs)
        endpoints["embedding"] = Endpoint(EmbeddingRequest, embed, body=_body, reader=reader)
    if task == "embed" or getattr(client.model_config.hf_config, "num_labels", 0) == 1:
        scores = ServingScores(client, models, supported_tasks=(task,), **shared)
        asked_of: dict[Kind, Any] = {"score": ScoreRequest, "rerank": RerankRequest}
        for kind, asked in asked_of.items():
            reader = partial(_pairs_request, TypeAdapter(asked), most=config.max_inputs)
            endpoints[kind] = Endpoint(asked, scores, body=_body, reader=reader)
    return endpoints


def _embedding_request(fields: dict[str, Any], most: int) -> Any:
    """Token ids are looked at once, and not by each form that pydantic tries: there may be millions."""
    _check_number_of_texts(fields, most)
    given = fields.get("input")
    if not isinstance(given, list) or not given or isinstance(given[0], (str, dict)):
        return _EMBEDDING.validate_python(fields)
    prompts = given if isinstance(given[0], list) else [given]
    if any(isinstance(prompt, list) and prompt and isinstance(prompt[0], dict) for prompt in prompts):
        return _EMBEDDING.validate_python(fields)  # conversations
    if not all(isinstance(prompt, list) and set(map(type, prompt)) <= {int} for prompt in prompts):
        raise invalid("input: token ids are whole numbers, and texts are texts", "input")
    asked = _EMBEDDING.validate_python({**fields, "input": [0]})
    asked.input = given
    return asked


def _pairs_request(forms: TypeAdapter[Any], fields: dict[str, Any], most: int) -> Any:
    """A query is read anew with each document."""
    _check_number_of_texts(fields, most)
    asked = forms.validate_python(fields)
    one, other = (asked.query, asked.documents) if isinstance(asked, RerankRequest) else (asked.data_1, asked.data_2)
    sizes = [[len(text) for text in _texts(each)] for each in (one, other)]
    pairs = max(map(len, sizes))
    if (chars := sum(sum(each) * (pairs if len(each) == 1 else 1) for each in sizes)) > MAX_PAIRED_CHARS:
        message = f"all pairs have {chars} characters together; at most {MAX_PAIRED_CHARS} are read"
        raise invalid(message, "query" if isinstance(asked, RerankRequest) else None)
    return asked


def _texts(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _check_number_of_texts(fields: dict[str, Any], most: int) -> None:
    """Checks how many texts a request has, each of which is a request of the dispatcher's, before anything reads them.

    Raises:
        ApiError: 400, there are more than ``most``.
    """
    for name, value in fields.items():
        if isinstance(value, list) and len(value) > most and type(value[0]) is not int:
            raise invalid(f"{name} has {len(value)} texts; at most {most} are taken at once", name)


def _body(response: JSONResponse) -> bytes:
    return bytes(response.body)

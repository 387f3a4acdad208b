"""The engine that vLLM's layer has: the gateway's dispatcher."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.protocol import EngineClient
from vllm.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm.pooling_params import PoolingParams
from vllm.renderers import renderer_from_config
from vllm.sampling_params import SamplingParams

from deployments.front_end.exchange import EXCHANGE
from deployments.front_end.outputs import outputs, vector_output
from deployments.front_end.sampling import pooling_of, samplings_of
from deployments.openai.errors import invalid


class DispatcherClient(EngineClient):
    """Gives each prompt to the exchange that it is called for.

    What an engine is asked beside that (to sleep, to profile, to load an adapter) is the deployment's own affair and is
    refused; nothing that is served here asks for it.

    Args:
        config: vLLM's, of a machine without an engine.
    """

    def __init__(self, config: VllmConfig) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self.renderer = renderer_from_config(config)
        self.input_processor = None
        self._turn = asyncio.Lock()

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: object = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **_: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Hands a prompt over at once, not when its outputs are asked for: so a refusal is known in time. Its adapter
        is the exchange's.

        Raises:
            ApiError: What the client is told: it can't be served.
        """
        exchange, token_ids = EXCHANGE.get(), _token_ids_of(prompt)
        samplings = samplings_of(sampling_params, reasoning_ended, reasoning_parser_kwargs)
        answers = [exchange.submit(token_ids, sampling) for sampling in samplings]
        return outputs(request_id, token_ids, answers, exchange, sampling_params.output_kind)

    def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **_: object
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Hands a prompt over when its output is asked for, in turn with the others of its request: they may be many.

        Raises:
            ApiError: What the client is told: it can't be served.
        """
        exchange = EXCHANGE.get()
        exchange.want_vector()
        return vector_output(request_id, _token_ids_of(prompt), pooling_of(pooling_params), exchange, self._turn)

    @property
    def is_running(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def errored(self) -> bool:
        return False

    @property
    def dead_error(self) -> BaseException:
        return RuntimeError("a dispatcher does not die")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Nothing: what is left of an exchange is abandoned when its response ends."""

    async def check_health(self) -> None:
        """It is healthy; what replicas are is ``/ready``'s to say."""

    async def is_tracing_enabled(self) -> bool:
        """Not in vLLM's way: the gateway traces requests itself."""
        return False

    async def do_log_stats(self) -> None:
        """Nothing: the gateway counts."""

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",) if self.model_config.runner_type == "generate" else ("embed", "classify")

    async def notify_kv_transfer_request_rejected(self, *_: object, **__: object) -> None:
        """Nothing: handoffs are the dispatcher's."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Frees the renderer's threads."""
        self.renderer.shutdown()

    async def add_lora(self, lora_request: object) -> bool:
        raise NotImplementedError("adapters are not served")

    async def start_profile(self, *_: object, **__: object) -> None:
        raise NotImplementedError("engines are profiled where they run")

    async def stop_profile(self) -> None:
        raise NotImplementedError("engines are profiled where they run")

    async def reset_mm_cache(self) -> None:
        raise NotImplementedError("caches are the engines'")

    async def reset_encoder_cache(self) -> None:
        raise NotImplementedError("caches are the engines'")

    async def reset_prefix_cache(self, *_: object, **__: object) -> bool:
        raise NotImplementedError("caches are the engines'")

    async def sleep(self, *_: object, **__: object) -> None:
        raise NotImplementedError("replicas sleep when the scaler says so")

    async def wake_up(self, *_: object, **__: object) -> bool:
        raise NotImplementedError("replicas wake when the scaler says so")

    async def is_sleeping(self) -> bool:
        return False

    async def release_kv_cache_memory(self) -> None:
        raise NotImplementedError("replicas sleep when the scaler says so")

    async def pause_generation(self, *_: object, **__: object) -> None:
        raise NotImplementedError("a deployment is not paused")

    async def resume_generation(self) -> None:
        raise NotImplementedError("a deployment is not paused")

    async def is_paused(self) -> bool:
        return False


def _token_ids_of(prompt: Any) -> list[int]:
    if not isinstance(prompt, dict) or prompt.get("type") != "token":
        raise invalid("only prompts of text and tokens are served", "messages", "unsupported_value")
    return list(prompt["prompt_token_ids"])

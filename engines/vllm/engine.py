"""vLLM behind the engine contract. The only file that imports vllm, but for what vllm imports into its own processes.

``AsyncLLM`` runs the model in child processes; this class translates requests, chunks, errors and statistics, and
keeps to two rules that vLLM leaves to its caller: a decode is never aborted while it pulls KV blocks, and child
processes never outlive this one.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import msgspec
import psutil
from vllm import PoolingParams, SamplingParams, envs
from vllm.config import KVEventsConfig, KVTransferConfig, StructuredOutputsConfig, VllmConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from engines.contract import (
    NO_POOLING,
    ONE_STEP,
    Adapter,
    ChosenLogprob,
    Chunk,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineTimes,
    KvCleared,
    KvDropped,
    KvEvent,
    KvHandle,
    KvParams,
    KvStored,
    Pooling,
    PoolingTask,
    PromptLogprobs,
    Sampling,
    StructuredOutput,
    TokenLogprob,
)
from engines.handoff import comes_from_prefill, goes_ahead, handed_over, left_for_decode, with_first
from engines.peer_port import free_port
from engines.resumed_text import ANSWERED_TOKENS, ResumedText, resumed
from engines.vllm.adapters import EngineAdapters, num_slots, with_stand_in_slots
from engines.vllm.connectors import BOTH_SIDES, HANDOFF, KV_ROLES, NEITHER_SIDE, Connector, transfer_config
from engines.vllm.kv_events import KvEventFeed, NoKvEventFeed
from engines.vllm.liveness import answered
from engines.vllm.nixl.leases import held_for
from engines.vllm.orphan_guard import OrphanGuard
from engines.vllm.step_log import EngineSizes, EngineStep, OnStep, SequenceOutput
from policies.errors import EngineDied, EngineError, EngineUnavailable, KvTransferFailed, RequestInvalid, ServingError
from policies.views import Role

POLL_INTERVAL_VARIABLE = "SPILLWAY_KV_POLL_INTERVAL_S"
"""Read by :mod:`engines.vllm.nixl.worker` in the engine's worker processes."""
HANDOFF_CLASS = "NixlPullConnector"
"""What vLLM calls the connector that hands over where it has several."""
REPLAYING_SCHEDULERS = {
    False: "engines.vllm.grammar_replay.ReplayingScheduler",
    True: "engines.vllm.grammar_replay.ReplayingAsyncScheduler",
}
"""What vLLM takes for its own scheduler, by whether it runs ahead of the device."""
WARM_UP_PROMPT_TOKENS = (8, 512)
SHUTDOWN_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How to start one engine.

    Args:
        model: Folder or hub name of the checkpoint.
        role: Unified, or one side of the handoff.
        changes_roles: Whether it may be asked for what the other side of the handoff does, too.
        engine_args: Passed on to vLLM's ``AsyncEngineArgs`` as they are.
        kv_connectors: What hands KV over, and what keeps it beside the engine's own cache.
        kv_buffer_device: Where transferred blocks live: ``cpu`` or ``cuda``.
        kv_lease_s: How long a prefill engine holds blocks that nobody pulls.
        kv_poll_interval_s: Pause between two looks at the transports; 0 means none, at the price of a core.
        name: The model's in vLLM's own metrics; empty: what ``model`` is.
        log_to_ray: Whether these go to Ray's agent of the node.
        kv_events: Whether it says what comes into its prefix cache and goes from it.
        sleeps: Whether it is to be able to sleep, as far as vLLM can.
        host: Address at which other engines reach this one for the handoff.
    """

    model: str
    role: Role
    changes_roles: bool = False
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    kv_connectors: Sequence[Connector] = (Connector(HANDOFF),)
    kv_buffer_device: str = "cpu"
    kv_lease_s: int = 30
    kv_poll_interval_s: float = 0.001
    name: str = ""
    log_to_ray: bool = False
    kv_events: bool = False
    sleeps: bool = False
    host: str = "127.0.0.1"


class VllmEngine:
    """One vLLM engine. Make it with :meth:`start`."""

    def __init__(
        self, llm: AsyncLLM, steps: "_StepStats", settings: VllmSettings, kv_events: NoKvEventFeed, tasks: Sequence[str]
    ) -> None:
        on_cpu = current_platform.is_cpu()
        num_adapters = num_slots(llm.vllm_config.lora_config, needs_stand_in=on_cpu)
        self._adapters = EngineAdapters(llm, num_adapters, self.check_health, needs_stand_in=on_cpu)
        self._llm = llm
        self._steps = steps
        self._kv_lease_s = settings.kv_lease_s
        self._kv_events = kv_events
        self._guard = OrphanGuard([child.pid for child in psutil.Process().children(recursive=True)])
        self._transfers: set[asyncio.Task[None]] = set()
        config = llm.vllm_config
        self._info = EngineInfo(
            context_tokens=config.model_config.max_model_len,
            kv_capacity_tokens=_kv_capacity_tokens(config),
            kv_block_tokens=config.cache_config.block_size,
            max_num_seqs=config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size,
            can_sleep=config.model_config.enable_sleep_mode,
            max_adapters=num_adapters,
            pooling_tasks=tuple(task for task in get_args(PoolingTask) if task in tasks),
        )
        self._is_asleep = False
        self._hands_first_tokens_over = _hands_first_tokens_over(config)
        self._replays_grammars = config.scheduler_config.scheduler_cls in REPLAYING_SCHEDULERS.values()

    @classmethod
    async def start(cls, settings: VllmSettings, on_step: OnStep | None = None) -> "VllmEngine":
        """Loads the model and starts the engine's processes; takes seconds to minutes.

        Args:
            settings: How.
            on_step: Is told of every step, at the price of some microseconds a step; calibration wants it.

        Raises:
            Exception: Whatever vLLM raises on arguments that it can't run; nothing is mapped before traffic.
        """
        steps = _StepStats()
        kv_events = KvEventFeed(msgspec.msgpack.Decoder(KVEventBatch).decode) if settings.kv_events else NoKvEventFeed()
        with ExitStack() as on_failure:
            on_failure.callback(kv_events.close)
            arguments = AsyncEngineArgs(
                model=settings.model,
                served_model_name=settings.name or None,
                disable_log_stats=False,
                enable_logging_iteration_details=on_step is not None,
                **_handoff_arguments(settings),
                **_kv_event_arguments(kv_events),
                **_sleep_arguments(settings),
                **with_stand_in_slots(settings.engine_args, needs_stand_in=current_platform.is_cpu()),
            )
            if isinstance(arguments.structured_outputs_config, dict):  # vLLM adds the parser of reasoning to it
                arguments.structured_outputs_config = StructuredOutputsConfig(**arguments.structured_outputs_config)
            started = partial(_start, arguments, steps, log_to_ray=settings.log_to_ray)
            llm = await asyncio.to_thread(started)  # a replica that has another engine answers Serve meanwhile
            on_failure.pop_all()
        tasks = await llm.get_supported_tasks()
        if on_step is not None:
            _tell_steps(llm, on_step)
        return cls(llm, steps, settings, kv_events, tasks)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def sizes(self) -> EngineSizes:
        """What calibration asks beside ``info``."""
        return _sizes(self._llm.vllm_config)

    def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        return self._pooled(request) if request.pooling else self._generated(request)

    async def _generated(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._answer(request, self._params(request))) as outputs:
            is_first = True
            async for output in outputs:
                yield _chunk(output, EngineTimes(prefill_s=_took_s(output)) if is_first else None)
                is_first = False

    async def _pooled(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """One chunk, whose vector is empty where the request was aborted."""
        request.check()
        params = _pooling_params(request.pooling)
        async with self._taken_in(request) as lora:
            pooled = self._llm.encode(
                _prompt(request),
                params,
                request_id=request.request_id,
                lora_request=lora,
                priority=request.priority,
            )
            async with aclosing(pooled) as outputs:
                async for output in outputs:
                    if output.error is not None:
                        raise EngineError(f"vLLM gave {request.request_id} up: {output.error.message}")
                    vector = output.outputs.data.float().numpy().astype("<f4").tobytes()
                    finish_reason = "stop" if vector else "abort"
                    yield Chunk("", (), finish_reason, cached_tokens=output.num_cached_tokens or 0, vector=vector)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        prompt_tokens = len(request.prompt_token_ids)
        draws_first = self._draws_first(request)
        params = self._params(request, {"do_remote_decode": True, "do_remote_prefill": False})
        params.max_tokens, params.min_tokens = 1, min(1, params.min_tokens)
        if not draws_first:
            params.logprobs = params.structured_outputs = None
        handle: KvHandle | None = None
        async with aclosing(self._answer(request, params)) as outputs:
            async for each in outputs:
                if kv := each.kv_transfer_params:
                    first = handed_over(_chunk(each), request, self._info.context_tokens) if draws_first else None
                    held = held_for(dict(kv), self._kv_lease_s)
                    handle = KvHandle(
                        held, prompt_tokens, _took_s(each), each.num_cached_tokens, first, _prompt_logprobs(each)
                    )
        if handle is None:
            raise KvTransferFailed(f"the prefill of {request.request_id} held no KV blocks")
        return handle

    def _draws_first(self, request: EngineRequest) -> bool:
        """Whether a prefill draws the answer's first token; log probabilities of a prompt come with the decode's."""
        sampling = request.sampling
        if not self._hands_first_tokens_over or sampling.prompt_logprobs is not None:
            return False
        if sampling.structured_output is not None and not self._replays_grammars:
            return False
        return comes_from_prefill(
            len(request.prompt_token_ids), self._info.kv_block_tokens, is_resumable=sampling.is_resumable
        )

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncIterator[Chunk]:
        first, rest = self._go_on(request, handle)
        pulled = asyncio.ensure_future(anext(rest))
        try:
            if first is not None and goes_ahead(first, handle.num_tokens, self.stats(), self._info):
                yield first
                first = None
            chunk = await asyncio.shield(pulled)
        except (asyncio.CancelledError, GeneratorExit):
            self._finish_transfer_then_close(pulled, rest)
            raise
        async with aclosing(rest):
            chunk = with_first(first, chunk)
            yield msgspec.structs.replace(chunk, prompt_logprobs=handle.prompt_logprobs)
            async for chunk in rest:
                yield chunk

    def _go_on(self, request: EngineRequest, handle: KvHandle) -> tuple[Chunk | None, AsyncGenerator[Chunk, None]]:
        """The first token that came with the prompt, and what comes once the KV blocks are here."""
        first, rest = handle.first, left_for_decode(request, handle.first)
        params = self._params(rest, dict(handle.params))
        if first is None:
            return None, _decoded(self._answer(rest, params))
        if first.finish_reason is not None:
            return first, _decoded(self._stream(rest, params))
        text, outputs = self._rest_of_answer(rest, params)
        return msgspec.structs.replace(first, text=text.left()), _decoded(outputs)

    def _finish_transfer_then_close(self, pulled: "asyncio.Future[Chunk]", rest: AsyncGenerator[Chunk, None]) -> None:
        """Lets the KV blocks arrive before the request is aborted; aborting a transfer has crashed engines."""

        async def finish() -> None:
            await asyncio.wait([pulled])
            pulled.cancelled() or pulled.exception()
            await rest.aclose()

        task = asyncio.create_task(finish())
        self._transfers.add(task)
        task.add_done_callback(self._transfers.discard)

    async def release_kv(self, handle: KvHandle) -> None:
        name = f"release-{uuid.uuid4().hex}"  # of no request: vLLM wants one that was never seen
        await self._llm.notify_kv_transfer_request_rejected(name, dict(handle.params))

    async def abort(self, request_id: str) -> None:
        await self._llm.abort(request_id)

    def stats(self) -> EngineStats:
        steps = self._steps.snapshot(self._llm.get_num_unfinished_requests())
        if not self._info.max_adapters:
            return steps
        adapters = self._adapters
        return msgspec.structs.replace(
            steps,
            adapter_loads_total=adapters.num_loads,
            adapters=adapters.names,
            adapters_in_use=adapters.in_use,
        )

    async def load_adapter(self, adapter: Adapter) -> None:
        await self._adapters.load(adapter)

    async def unload_adapter(self, name: str) -> None:
        await self._adapters.unload(name)

    def take_kv_events(self) -> list[KvEvent]:
        published = (each for batch in self._kv_events.batches() for each in batch.events)
        return [_kv_event(each) for each in published if _is_of_plain_text(each)]

    async def warm_up(self) -> None:
        """Whole requests in every role: a prefill that nobody pulls keeps its engine polling until the lease ends."""
        tasks = self._info.pooling_tasks
        pooling = Pooling(tasks[0]) if tasks else NO_POOLING
        plain = ONE_STEP if tasks else Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)
        longest = self._info.context_tokens - plain.max_tokens
        for number, prompt_tokens in enumerate(WARM_UP_PROMPT_TOKENS):
            await self._try_out(f"warm-up-{number}", min(prompt_tokens, longest), plain, pooling)
        if tasks:
            return
        special = msgspec.structs.replace(plain, logprobs=1, structured_output=StructuredOutput("regex", "[a-z]+"))
        await self._try_out("warm-up-special", WARM_UP_PROMPT_TOKENS[0], special)

    async def _try_out(
        self, request_id: str, prompt_tokens: int, sampling: Sampling, pooling: Pooling = NO_POOLING
    ) -> None:
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=[1] * prompt_tokens, sampling=sampling, pooling=pooling
        )
        async for _ in self.generate(request):
            pass

    async def sleep(self) -> None:
        if self._info.can_sleep and not self._is_asleep:
            self._is_asleep = True
            await answered(self._llm.sleep(level=1), self.check_health)

    async def wake(self) -> None:
        if self._is_asleep:
            await answered(self._llm.wake_up(), self.check_health)
            self._is_asleep = False

    def check_health(self) -> None:
        if self._llm.errored:
            raise EngineUnavailable("the engine core is dead") from self._llm.dead_error

    async def shutdown(self) -> None:
        if self._transfers:
            await asyncio.wait(self._transfers, timeout=SHUTDOWN_PATIENCE_S)
        self._llm.shutdown()
        self._adapters.close()
        self._kv_events.close()
        self._guard.release()  # last: this process may be killed while the engine takes its seconds to end

    def _params(self, request: EngineRequest, kv_params: KvParams | None = None) -> SamplingParams:
        if request.answered_tokens and request.sampling.structured_output and not self._replays_grammars:
            raise EngineError(f"scheduler_cls is another, so no grammar sees what is out of {request.request_id}")
        return _sampling_params(request, kv_params, self._llm.tokenizer)

    def _answer(self, request: EngineRequest, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        """The answer, or its rest."""
        if not request.answered_tokens:
            return self._stream(request, params)
        return self._rest_of_answer(request, params)[1]

    def _rest_of_answer(
        self, request: EngineRequest, params: SamplingParams
    ) -> tuple[ResumedText, AsyncGenerator[RequestOutput, None]]:
        """vLLM's detokenizer would begin a new text, so one here goes on with the old."""
        text = ResumedText(_detokenizer(self._llm.tokenizer, request, params), request)
        params.stop, params.detokenize = [], params.logprobs is not None
        return text, resumed(self._stream(request, params), text)

    async def _stream(self, request: EngineRequest, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        has_begun = False
        async with self._taken_in(request) as lora, aclosing(self._run(request, params, lora)) as run:
            async for output in run:
                if output.outputs[0].finish_reason == "error":
                    raise _failure(request, params, has_begun=has_begun)
                has_begun = True
                yield output

    @asynccontextmanager
    async def _taken_in(self, request: EngineRequest) -> AsyncIterator[LoRARequest | None]:
        """What a request is computed with, while it is; vLLM's errors become the contract's."""
        if self._is_asleep:
            raise EngineUnavailable(f"the engine sleeps, and takes no {request.request_id}")
        self.check_health()
        try:
            async with self._adapters.used_for(request.adapter) as lora:
                yield lora
        except EngineDeadError as error:
            raise EngineDied("the engine core died") from error
        except VLLMClientError as error:
            raise RequestInvalid(str(error), getattr(error, "parameter", None)) from error
        except EngineGenerateError as error:
            if isinstance(error.__cause__, ValueError):
                raise RequestInvalid(str(error.__cause__)) from error
            raise EngineError(f"the engine failed: {error.__cause__!r}") from error

    def _run(
        self, request: EngineRequest, params: SamplingParams, lora: LoRARequest | None
    ) -> AsyncGenerator[RequestOutput, None]:
        structured = request.sampling.structured_output
        outputs: AsyncGenerator[RequestOutput, None] = self._llm.generate(
            _prompt(request),
            params,
            request_id=request.request_id,
            lora_request=lora,
            priority=request.priority,
            reasoning_ended=structured.reasoning_ended if structured is not None else None,
            reasoning_parser_kwargs=structured.reasoning_options if structured is not None else None,
        )
        return outputs


def _start(arguments: AsyncEngineArgs, steps: "_StepStats", *, log_to_ray: bool) -> AsyncLLM:
    """Starts vLLM, with a scheduler that replays grammars unless another one is asked for."""
    config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = REPLAYING_SCHEDULERS[bool(scheduler.async_scheduling)]
    loggers = [RayPrometheusStatLogger] if log_to_ray else []
    return AsyncLLM.from_vllm_config(config, stat_loggers=[lambda *_: steps, *loggers])


class _StepStats(StatLoggerBase):
    """Keeps what the engine says after each step; vLLM calls it as a stat logger."""

    def __init__(self) -> None:
        self._schedulers: dict[int, SchedulerStats] = {}
        self._num_steps = 0
        self._totals = dict.fromkeys(
            ("prompt", "output", "kv_tokens", "kv_bytes", "kv_failures", "drafts", "accepted"), 0
        )

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Takes in one step of one data-parallel rank; ``iteration_stats`` is missing for a step without output."""
        self._num_steps += 1
        totals = self._totals
        if iteration_stats is not None:
            totals["prompt"] += iteration_stats.num_prompt_tokens
            totals["output"] += iteration_stats.num_generation_tokens
        if scheduler_stats is None:
            return
        self._schedulers[engine_idx] = scheduler_stats
        if scheduler_stats.connector_prefix_cache_stats is not None:
            totals["kv_tokens"] += scheduler_stats.connector_prefix_cache_stats.hits
        if drafts := scheduler_stats.spec_decoding_stats:
            totals["drafts"] += drafts.num_draft_tokens
            totals["accepted"] += drafts.num_accepted_tokens
        said = scheduler_stats.kv_connector_stats or {}
        transfers = said.get(HANDOFF_CLASS, said)  # of several connectors each has its own
        if transfers:
            totals["kv_bytes"] += int(sum(transfers.get("bytes_transferred", ())))
            totals["kv_failures"] += len(transfers.get("num_failed_transfers", ()))

    def log_engine_initialized(self) -> None: ...

    def snapshot(self, num_requests_unfinished: int) -> EngineStats:
        """The state after the last step, with the one count that does not wait for a step."""
        ranks, totals = list(self._schedulers.values()), self._totals
        return EngineStats(
            num_requests_unfinished=num_requests_unfinished,
            num_requests_running=sum(each.num_running_reqs for each in ranks),
            num_requests_waiting=sum(each.num_waiting_reqs + each.num_skipped_waiting_reqs for each in ranks),
            kv_cache_usage=sum(each.kv_cache_usage for each in ranks) / max(1, len(ranks)),
            num_steps=self._num_steps,
            prompt_tokens_total=totals["prompt"],
            output_tokens_total=totals["output"],
            kv_tokens_received_total=totals["kv_tokens"],
            kv_bytes_received_total=totals["kv_bytes"],
            kv_transfer_failures_total=totals["kv_failures"],
            draft_tokens_total=totals["drafts"],
            accepted_tokens_total=totals["accepted"],
        )


def _tell_steps(llm: AsyncLLM, on_step: OnStep) -> None:
    """Looks at what comes from the engine core before vLLM's front end does: stat loggers see no step's end."""
    get_output = llm.engine_core.get_output_async
    requests = llm.output_processor.request_states

    async def get_and_tell() -> EngineCoreOutputs:
        outputs: EngineCoreOutputs = await get_output()
        details = outputs.scheduler_stats.iteration_details if outputs.scheduler_stats else None
        if details is not None:
            known = ((requests.get(each.request_id), each) for each in outputs.outputs)
            told = tuple(_sequence_output(state.external_req_id, each) for state, each in known if state is not None)
            on_step(
                EngineStep(
                    ended_s=outputs.timestamp,
                    prompt_tokens=details.num_ctx_tokens,
                    prompt_sequences=details.num_ctx_requests,
                    decode_sequences=details.num_generation_requests,
                    outputs=told,
                )
            )
        return outputs

    llm.engine_core.get_output_async = get_and_tell


def _sequence_output(request_id: str, output: EngineCoreOutput) -> SequenceOutput:
    cached_tokens = output.prefill_stats.num_cached_tokens if output.prefill_stats is not None else None
    queued_s = [each.timestamp for each in output.events or () if each.type is EngineCoreEventType.QUEUED]
    return SequenceOutput(
        request_id, len(output.new_token_ids), output.finished, cached_tokens, queued_s[0] if queued_s else None
    )


def _sizes(config: VllmConfig) -> EngineSizes:
    model, cache = config.model_config, config.cache_config
    names = {"auto": model.dtype, **STR_DTYPE_TO_TORCH_DTYPE}
    num_values = (
        2 * model.get_num_layers(config.parallel_config) * model.get_total_num_kv_heads() * model.get_head_size()
    )
    return EngineSizes(
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        kv_bytes_per_token=num_values * names[cache.cache_dtype].itemsize,
        runs_ahead=bool(config.scheduler_config.async_scheduling) and not current_platform.is_cpu(),
    )


def _kv_capacity_tokens(config: VllmConfig) -> int:
    """Of a model that keeps no KV as much as its batch could want: it binds nothing."""
    if config.model_config.attn_type in ("encoder_only", "attention_free"):
        return int(config.scheduler_config.max_num_seqs * config.model_config.max_model_len)
    return int(config.cache_config.num_gpu_blocks * config.cache_config.block_size)


def _handoff_arguments(settings: VllmSettings) -> dict[str, Any]:
    """The engine's side of the handoff, and whatever else keeps its KV; each on a machine listens on its own port."""
    kv_role = BOTH_SIDES if settings.changes_roles else KV_ROLES.get(settings.role, NEITHER_SIDE)
    config = transfer_config(settings.kv_connectors, kv_role, settings.kv_buffer_device, settings.kv_lease_s)
    arguments = {"kv_transfer_config": KVTransferConfig(**config)} if config else {}
    if settings.role is Role.UNIFIED:
        return arguments
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = settings.host
    ranks = settings.engine_args.get("data_parallel_size", 1)
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port(settings.host, in_a_row=ranks))
    os.environ[POLL_INTERVAL_VARIABLE] = str(settings.kv_poll_interval_s)
    return {**arguments, "worker_extension_cls": "engines.vllm.nixl.worker.NixlWorker"}


def _kv_event_arguments(feed: NoKvEventFeed) -> dict[str, Any]:
    if not isinstance(feed, KvEventFeed):
        return {}
    config = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=feed.endpoint)
    return {"kv_events_config": config}


def _sleep_arguments(settings: VllmSettings) -> dict[str, Any]:
    """vLLM sleeps on GPUs alone, and gives KV memory back that the handoff's connector has told other machines of."""
    can_sleep = settings.role is Role.UNIFIED and current_platform.is_sleep_mode_available()
    is_said = "enable_sleep_mode" in settings.engine_args
    return {"enable_sleep_mode": True} if settings.sleeps and can_sleep and not is_said else {}


def _hands_first_tokens_over(config: VllmConfig) -> bool:
    """Whether a decode may go on with a token of the prefill's: not where it has to compute the prompt's end itself, or
    pulls part of its blocks only.
    """
    model = config.model_config
    has_part = model.is_hybrid or model.has_inner_state or model.get_sliding_window() is not None
    return not has_part and config.speculative_config is None


def _prompt(request: EngineRequest) -> TokensPrompt:
    if request.cache_salt:
        return TokensPrompt(prompt_token_ids=request.prompt_token_ids, cache_salt=request.cache_salt)
    return TokensPrompt(prompt_token_ids=request.prompt_token_ids)


def _is_of_plain_text(event: BlockStored | BlockRemoved | AllBlocksCleared) -> bool:
    """Whether it tells of text that those find who have the same, with its salt: no adapter or image belongs to it.

    Of models with several groups of layers the first group counts.
    """
    if isinstance(event, AllBlocksCleared):
        return True
    has_adapter = isinstance(event, BlockStored) and event.lora_id is not None
    return not event.group_idx and not has_adapter


def _kv_event(event: BlockStored | BlockRemoved | AllBlocksCleared) -> KvEvent:
    if isinstance(event, BlockStored):
        block_ids, token_ids = tuple(event.block_hashes), tuple(event.token_ids)
        return KvStored(block_ids, event.parent_block_hash, token_ids, _cache_salt(event))
    return KvDropped(tuple(event.block_hashes)) if isinstance(event, BlockRemoved) else KvCleared()


def _cache_salt(event: BlockStored) -> str:
    """Prompts here have no other keys: the first block of a text has its salt, the others none."""
    first = (event.extra_keys or (None,))[0]
    return str(first[0]) if first and event.parent_block_hash is None else ""


def _sampling_params(request: EngineRequest, kv_params: KvParams | None, tokenizer: Any) -> SamplingParams:
    """vLLM's terms.

    Raises:
        RequestInvalid: They are none of vLLM's, or have more bad words than a worker has room for, which would end it.
    """
    request.check()
    wanted = msgspec.structs.asdict(request.sampling)
    structured = wanted.pop("structured_output")
    for name in ("stop", "stop_token_ids", "bad_words"):
        wanted[name] = list(wanted[name])
    if (allowed := wanted["allowed_token_ids"]) is not None:
        wanted["allowed_token_ids"] = list(allowed)
    extra: dict[str, Any] = {} if kv_params is None else {"kv_transfer_params": kv_params}
    if structured is not None and request.answered_tokens:
        extra[ANSWERED_TOKENS] = request.answered_tokens
    try:
        params = SamplingParams(
            **wanted,
            structured_outputs=None if structured is None else _structured_outputs(structured),
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra or None,
        )
        params.update_from_tokenizer(tokenizer)
    except (VLLMClientError, ValueError, msgspec.DecodeError) as error:
        raise RequestInvalid(str(error), getattr(error, "parameter", None)) from error
    num_tokens = sum(map(len, params.bad_words_token_ids or ()))
    if num_tokens > (most := envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS):
        raise RequestInvalid(f"bad_words have {num_tokens} tokens; at most {most} are taken", "bad_words")
    return params


def _pooling_params(pooling: Pooling) -> PoolingParams:
    """vLLM's terms."""
    extra = {} if pooling.second_at is None else {"compressed_token_type_ids": pooling.second_at}
    return PoolingParams(
        task=pooling.task,
        dimensions=pooling.dimensions,
        use_activation=pooling.use_activation,
        extra_kwargs=extra or None,
    )


def _structured_outputs(wanted: StructuredOutput) -> StructuredOutputsParams:
    """vLLM's terms.

    Raises:
        msgspec.DecodeError: The choices are no list of texts.
    """
    if wanted.kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if wanted.kind == "choice":
        return StructuredOutputsParams(choice=msgspec.json.decode(wanted.spec, type=list[str]))
    return StructuredOutputsParams(**{wanted.kind: wanted.spec})


def _detokenizer(tokenizer: Any, request: EngineRequest, params: SamplingParams) -> IncrementalDetokenizer:
    """What vLLM would make the text with, had there been no interruption."""
    whole = params.clone()
    whole.min_tokens += request.answered_tokens
    asked = EngineCoreRequest(request.request_id, request.original_token_ids, None, whole, None, 0.0, None, None, None)
    return IncrementalDetokenizer.from_new_request(tokenizer, asked)


def _failure(request: EngineRequest, params: SamplingParams, *, has_begun: bool) -> ServingError:
    """Why vLLM has given a request up, which it does not say: KV that did not come, or a grammar that no token goes on
    with, since the request allows none of those that would. An answer that others have begun is not the request's.
    """
    pulls_kv = (params.extra_args or {}).get("kv_transfer_params", {}).get("do_remote_prefill")
    is_its_own = not request.answered_tokens and (has_begun or not pulls_kv)
    if request.sampling.structured_output and is_its_own:
        said = "the structured output and what else is asked of the answer leave no token to go on with"
        return RequestInvalid(said, "structured_outputs")
    message = f"vLLM gave {request.request_id} up"
    return KvTransferFailed(message) if pulls_kv else EngineError(message)


def _took_s(output: RequestOutput, until: str = "first_token_ts") -> float:
    """From a request's coming into the engine core to its first token there, or to its first step."""
    return max(0.0, getattr(output.metrics, until) - output.metrics.queued_ts) if output.metrics else 0.0


def _chunk(output: RequestOutput, times: EngineTimes | None = None) -> Chunk:
    completion = output.outputs[0]
    return Chunk(
        text=completion.text,
        token_ids=tuple(completion.token_ids),
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
        cached_tokens=output.num_cached_tokens or 0,
        logprobs=_logprobs(completion),
        times=times,
        prompt_logprobs=_prompt_logprobs(output),
    )


async def _decoded(outputs: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[Chunk, None]:
    """The chunks of a decode; the first says how long the KV blocks took."""
    times: EngineTimes | None
    async with aclosing(outputs):
        is_first = True
        async for output in outputs:
            times = EngineTimes(kv_transfer_s=_took_s(output, until="scheduled_ts")) if is_first else None
            is_first = False
            yield _chunk(output, times)


def _logprobs(completion: CompletionOutput) -> tuple[ChosenLogprob, ...] | None:
    if completion.logprobs is None:
        return None
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return tuple(_chosen(token_id, position) for token_id, position in pairs)


def _prompt_logprobs(output: RequestOutput) -> PromptLogprobs | None:
    if not output.prompt_logprobs:  # vLLM gives an empty list with each output after the first
        return None
    pairs = zip(output.prompt_token_ids or (), output.prompt_logprobs, strict=True)
    return tuple(None if position is None else _chosen(token_id, position) for token_id, position in pairs)


def _chosen(token_id: int, position: Mapping[int, Logprob]) -> ChosenLogprob:
    """The chosen token is always in ``position``, also where it is not among the likeliest."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank or 0)
    tokens = {
        each: TokenLogprob(each, found.decoded_token or "", found.logprob, found.rank or 0) for each, found in ranked
    }
    return ChosenLogprob(tokens[token_id], tuple(tokens.values()))

"""vLLM's own scheduler, one step at a time: no engine, no weights. Whatever it schedules is taken as computed."""

from dataclasses import dataclass, field
from typing import Any

from deployments.config import ROOT
from engines.model.batching import BatchLimits

BLOCK_TOKENS = 16


@dataclass(frozen=True)
class StepRecord:
    """What a scheduler decided in a step, and how things stood before the step was completed."""

    tokens: dict[str, int]
    num_preemptions: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    pulling: frozenset[str]


@dataclass
class Job:
    """A request, and all of its text: what it asks and what it will be answered."""

    request_id: str
    text: list[int]
    prompt_tokens: int
    priority: int = 0
    pulls_kv: bool = False
    num_generated: int = 0
    cached_tokens: int = field(default=-1, compare=False)


class VllmScheduler:
    """See the module.

    Args:
        limits: Bounds of a step.
        num_blocks: KV blocks that requests can have.
    """

    def __init__(self, limits: BatchLimits, num_blocks: int) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        config = _vllm_config(limits)
        config.cache_config.num_gpu_blocks = num_blocks + 1
        self._scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=_kv_cache_config(num_blocks + 1),  # one is vLLM's null block
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self._jobs: dict[str, Job] = {}
        self._num_blocks = num_blocks

    def submit(self, job: Job) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            request_id=job.request_id,
            prompt_token_ids=job.text[: job.prompt_tokens],
            sampling_params=SamplingParams(
                max_tokens=len(job.text) - job.prompt_tokens,
                ignore_eos=True,
                extra_args={"kv_transfer_params": {"do_remote_prefill": True}} if job.pulls_kv else None,
            ),
            pooling_params=None,
            arrival_time=float(len(self._jobs)),
            priority=job.priority,
            block_hasher=self._hasher,
        )
        self._jobs[job.request_id] = job
        self._scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self, arrived: frozenset[str]) -> StepRecord:
        """Makes a step, at the end of which some requests' KV has arrived."""
        scheduler = self._scheduler
        scheduled = scheduler.schedule()
        num_running, num_waiting = scheduler.get_request_counts()
        record = StepRecord(
            tokens=dict(scheduled.num_scheduled_tokens),
            num_preemptions=len(scheduled.preempted_req_ids or ()),
            num_running=num_running,
            num_waiting=num_waiting,
            num_used_blocks=round(scheduler.get_kv_cache_usage() * self._num_blocks),
            pulling=self._pulling(),
        )
        for outputs in scheduler.update_from_output(scheduled, self._computed(scheduled, arrived)).values():
            for output in outputs.outputs:
                if output.prefill_stats is not None:
                    self._jobs[output.request_id].cached_tokens = output.prefill_stats.num_local_cached_tokens
        return record

    def _pulling(self) -> frozenset[str]:
        from vllm.v1.request import RequestStatus

        scheduler, pulling = self._scheduler, RequestStatus.WAITING_FOR_REMOTE_KVS  # until it is scheduled
        names = {name for name, each in scheduler.requests.items() if each.status == pulling}
        return frozenset(names - scheduler.finished_recving_kv_req_ids)

    def _computed(self, scheduled: Any, arrived: frozenset[str]) -> Any:
        """The model's answer: a token for each request whose known text is computed, none for the others."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        sampled: list[list[int]] = []
        for request_id in scheduled.num_scheduled_tokens:
            job, token_ids = self._jobs[request_id], []
            if not self._scheduler.requests[request_id].is_prefill_chunk:
                token_ids = [job.text[job.prompt_tokens + job.num_generated]]
                job.num_generated += 1
            sampled.append(token_ids)
        request_ids = list(scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=KVConnectorOutput(finished_recving=set(arrived)) if arrived else None,
        )


def _vllm_config(limits: BatchLimits) -> Any:
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig

    from engines.vllm.tiny_model import ensure_tiny_model

    model = ROOT / ".models" / "tiny-llama"
    ensure_tiny_model(model)
    return VllmConfig(
        model_config=ModelConfig(model=str(model), dtype="bfloat16", max_model_len=8192, skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            policy="priority" if limits.priority_scheduling else "fcfs",
            max_model_len=8192,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="PullingConnector",
            kv_connector_module_path="tests.engines.vllm_pulling_connector",
            kv_role="kv_consumer",
        ),
    )


def _kv_cache_config(num_blocks: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    layer = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])

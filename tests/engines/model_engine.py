"""A step model behind the engine contract, timed by the event loop it runs in: an engine whose coefficients are known.

It also tells of its steps, as a vLLM engine does to calibration.
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from itertools import accumulate

from engines import Chunk, EngineInfo, EngineProfile, EngineRequest, StepModel
from engines.model.batching import Batch, BatchLimits
from engines.model.cost_model import StepWork
from engines.model.kv_blocks import KvBlocks
from engines.model.sequences import Sequence, SequenceStage, StepOutput
from engines.vllm.step_log import EngineStep, OnStep, SequenceOutput
from tests.engines.scripted_engine import ScriptedEngine


class ToldBatch(Batch):
    """Notes who takes part in a step and what each gets out of it."""

    def __init__(self, limits: BatchLimits, blocks: KvBlocks) -> None:
        super().__init__(limits, blocks)
        self.now_s = 0.0
        self.queued_s: dict[str, float] = {}
        self.ended: list[EngineStep] = []
        self._work = StepWork(0, 0, 0, 0)
        self._num_decoding = 0
        self._numbers: dict[Sequence, int] = {}

    def submit(self, sequence: Sequence) -> None:
        self.queued_s[sequence.request_id] = self.now_s
        super().submit(sequence)

    def schedule(self) -> StepWork | None:
        work = super().schedule()
        self._work = work or self._work
        members = list(self.running.values())
        self._numbers = {each: self.num_output_tokens_of(each) for each in members}
        self._num_decoding = sum(each.stage is SequenceStage.DECODING for each in members)
        return work

    def complete(self, num_steps: int) -> StepOutput:
        output = super().complete(num_steps)
        told = tuple(self._told(each) for each, before in self._numbers.items() if self._has_token(each, before))
        num_decoding = self._num_decoding
        self.ended.append(
            EngineStep(
                ended_s=self.now_s,
                prompt_tokens=self._work.new_tokens - num_decoding,
                prompt_sequences=self._work.sequences - num_decoding,
                decode_sequences=num_decoding,
                outputs=told,
            )
        )
        return output

    def _has_token(self, sequence: Sequence, before: int) -> bool:
        return sequence.is_over or self.num_output_tokens_of(sequence) > before

    def _told(self, sequence: Sequence) -> SequenceOutput:
        queued_s = self.queued_s.pop(sequence.request_id, None)
        cached_tokens = None if queued_s is None else sequence.cached_tokens
        return SequenceOutput(sequence.request_id, 1, sequence.is_over, cached_tokens, queued_s)


class ModelEngine(ScriptedEngine):
    """Everything but ``generate`` and ``info`` is the scripted engine's."""

    def __init__(self, profile: EngineProfile, on_step: OnStep) -> None:
        super().__init__()
        self._profile = profile
        self._on_step = on_step
        limits = profile.limits()
        self._model = StepModel(profile.step_model(limits, max_steps_per_run=1))
        self._batch = ToldBatch(limits, self._model.batch.blocks)
        self._model.batch = self._batch
        self._streams: dict[str, asyncio.Queue[Chunk]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            context_tokens=self._profile.context_tokens,
            kv_capacity_tokens=self._profile.kv.capacity_tokens,
            kv_block_tokens=self._profile.kv.block_tokens,
            max_num_seqs=self._profile.max_num_seqs,
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        queue = self._streams[request.request_id] = asyncio.Queue()
        tokens, block_tokens = request.prompt_token_ids, self._profile.kv.block_tokens
        blocks = [tuple(tokens[end - block_tokens : end]) for end in range(block_tokens, len(tokens) + 1, block_tokens)]
        sequence = Sequence(
            request.request_id,
            len(tokens),
            request.sampling.max_tokens,
            content=tuple(accumulate(blocks, lambda text, block: hash((text, block)), initial=0))[1:],
            content_unit_tokens=block_tokens,
        )
        self._model.submit(sequence, asyncio.get_running_loop().time())
        self._set_timer()
        while True:
            chunk = await queue.get()
            yield chunk
            if chunk.finish_reason is not None:
                return

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._model.next_event_s < math.inf:
            self._timer = asyncio.get_running_loop().call_at(self._model.next_event_s, self._advance)

    def _advance(self) -> None:
        self._batch.now_s = self._model.next_event_s
        self._model.advance(self._batch.now_s)
        for step in self._batch.ended:
            self._on_step(step)
            num_sequences = step.prompt_sequences + step.decode_sequences
            at_s = step.ended_s + self._profile.overheads.token_s * num_sequences
            for output in step.outputs:
                chunk = Chunk("x", (7,), "length" if output.is_last else None)
                asyncio.get_running_loop().call_at(at_s, self._streams[output.request_id].put_nowait, chunk)
        self._batch.ended.clear()
        self._set_timer()

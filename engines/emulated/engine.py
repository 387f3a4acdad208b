"""The engine model in real time behind the engine contract: how a large engine behaves, on no hardware to speak of.

Nothing is computed but when things would happen. Tokens are not pushed: a reader that has nothing to read is woken
after each step, and one that comes late finds everything since its last visit in one chunk.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from engines.contract import Adapter, Chunk, EngineInfo, EngineRequest, EngineStats, KvEvent, KvHandle
from engines.emulated.answers import Answerer
from engines.emulated.fault_switch import check_duration
from engines.emulated.kv_claims import release_kv
from engines.emulated.kv_events import KvEvents, NoKvEvents
from engines.emulated.model_host import ModelHost
from engines.emulated.run import EmulatedRun
from engines.emulated.settings import EmulatedSettings
from engines.emulated.text import Vocabulary, content_of
from engines.emulated.vectors import NoVectors, Pooler, TokenVectors
from engines.faults import FaultKind, check_fault
from engines.handoff import comes_from_prefill, goes_ahead, handed_over, left_for_decode, with_first
from engines.model.sequences import Sequence, slowdown_between
from policies.errors import EngineAborted, EngineUnavailable, KvTransferFailed, RequestInvalid


class EmulatedEngine:
    """One emulated engine. Make it with :meth:`start`."""

    def __init__(
        self, settings: EmulatedSettings, vocabulary: Vocabulary, now_s: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        self._pooler: Pooler = TokenVectors.load(settings.model) if settings.pools_prompts else NoVectors()
        self._info = msgspec.structs.replace(settings.info(), pooling_tasks=self._pooler.tasks)
        self._vocabulary = vocabulary
        self._answerer = Answerer(vocabulary, self._info.context_tokens, settings.mean_output_tokens, settings.seed)
        self._readers: dict[EmulatedRun, asyncio.Future[None]] = {}
        self._host = ModelHost(settings, self._wake_readers, now_s)
        blocks, unit_tokens = self._host.model.steps.batch.blocks, self._info.kv_block_tokens
        self._is_asleep = False
        self._kv_events = KvEvents(blocks, unit_tokens) if settings.kv_events else NoKvEvents()

    @classmethod
    async def start(cls, settings: EmulatedSettings, now_s: Callable[[], float] | None = None) -> "EmulatedEngine":
        """Reads the tokenizer and opens a port for claims and, for prefill, one for handoffs.

        Args:
            settings: The engine.
            now_s: A monotonic clock in seconds; the event loop's unless given.

        Raises:
            ConfigError: The model has no tokenizer, or the settings do not fit together.
        """
        engine = cls(settings, Vocabulary.load(settings.model), now_s)
        engine._info = msgspec.structs.replace(engine._info, claims_at=await engine._host.listen())
        return engine

    # -- the contract -------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._info

    def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        return self._pooled(request) if request.pooling else self._stream(request, None)

    def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncIterator[Chunk]:
        return self._stream(request, handle)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        if not self._settings.hands_kv_over:
            raise KvTransferFailed(f"the prefill of {request.request_id} would hold no KV blocks here")
        draws_first = comes_from_prefill(
            len(request.prompt_token_ids), self._info.kv_block_tokens, is_resumable=request.sampling.is_resumable
        )
        answer = self._answerer.first_token(request) if draws_first else self._answerer.no_token(request)
        run = EmulatedRun(request, answer, self._vocabulary, self._host.now_s)
        self._submit(run, holds_kv=True)
        try:
            while not run.is_over:
                await self._wait(run)
            self.check_health()
            if run.finish_reason == "abort":
                raise EngineAborted(f"the prefill of {request.request_id} was aborted")
            handle = self._hand_over(run)
            if not draws_first:
                return handle
            first = handed_over(run.read(1, self._answerer), request, self._info.context_tokens)
            return msgspec.structs.replace(handle, first=first)
        finally:
            self._close(run)

    async def release_kv(self, handle: KvHandle) -> None:
        await release_kv(handle.params)

    async def abort(self, request_id: str) -> None:
        if run := self._host.runs.get(request_id):
            self._host.abort(run)

    def stats(self) -> EngineStats:
        model, batch = self._host.model, self._host.model.steps.batch
        return EngineStats(
            num_requests_unfinished=model.num_unfinished,
            num_requests_running=len(batch.running),
            num_requests_waiting=model.steps.num_waiting,
            kv_cache_usage=batch.blocks.usage_fraction,
            num_steps=model.steps.num_steps,
            prompt_tokens_total=model.prompt_tokens,
            output_tokens_total=0 if self._pooler.tasks else batch.num_output_tokens,
            kv_tokens_received_total=model.kv_tokens_received,
            kv_bytes_received_total=model.kv_tokens_received * self._settings.profile.kv.bytes_per_token,
            kv_transfer_failures_total=model.kv_transfer_failures,
            draft_tokens_total=batch.num_draft_tokens,
            accepted_tokens_total=batch.num_accepted_tokens,
            adapter_loads_total=batch.adapters.num_loads,
            adapters=batch.adapters.names,
            adapters_in_use=model.adapters_in_use,
        )

    async def load_adapter(self, adapter: Adapter) -> None:
        """It takes its time, but holds up no steps; whether there is one at the path nobody looks."""
        if not self._info.max_adapters:
            message = f"this engine takes no adapters such as {adapter.name}: its enable_lora is off"
            raise RequestInvalid(message, "model")
        await asyncio.sleep(self._settings.profile.adapter_load_s / self._settings.speed)
        self._host.catch_up()
        self._host.model.steps.batch.adapters.load(adapter.name)

    async def unload_adapter(self, name: str) -> None:
        self._host.catch_up()
        self._host.model.steps.batch.adapters.unload(name)

    def take_kv_events(self) -> list[KvEvent]:
        return self._kv_events.take()

    async def warm_up(self) -> None:
        """Takes the time that the start of the real engine would; there is nothing to warm."""
        await asyncio.sleep(self._settings.start_s / self._settings.speed)

    async def sleep(self) -> None:
        if self._info.can_sleep and not self._is_asleep:
            self._host.catch_up()
            self._host.model.sleep()
            self._is_asleep = True
            await asyncio.sleep(self._settings.profile.sleep_s / self._settings.speed)

    async def wake(self) -> None:
        if self._is_asleep:
            await asyncio.sleep(self._settings.profile.wake_s / self._settings.speed)
            self._is_asleep = False

    def check_health(self) -> None:
        if self._host.dead:
            raise EngineUnavailable(self._host.dead)

    async def shutdown(self) -> None:
        await self._host.shutdown()

    # -- faults -------------------------------------------------------------------------------------------------------

    def inject_fault(self, kind: FaultKind, *, factor: float = 1.0, for_s: float | None = None) -> None:
        """Switches a fault on.

        Args:
            kind: Which.
            factor: For ``SLOW``: how many times as long a step takes, above 0.
            for_s: Real seconds until it is switched off again; ``None`` leaves it on. ``CRASH`` is for good.

        Raises:
            ConfigError: A fault that would change nothing, or a number out of range.
        """
        check_fault(kind, self._settings.role, factor)
        check_duration(for_s)
        if kind is FaultKind.CRASH:
            self._host.die("the engine core crashed")
        else:
            self._host.faults.begin(kind, factor, for_s)

    def clear_fault(self, kind: FaultKind) -> None:
        """Switches a fault off; one that is not on, or for good, is left alone."""
        self._host.faults.end(kind)

    # -- a request ----------------------------------------------------------------------------------------------------

    async def _pooled(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """One chunk; the step that computes the end of the prompt is the last one."""
        self._pooler.check(request)
        run = EmulatedRun(request, self._answerer.no_token(request), came_at_s=self._host.now_s)
        self._submit(run)
        try:
            while not run.is_over:
                await self._wait(run)
            chunk = run.read(1, self._answerer)
            is_aborted = chunk.finish_reason == "abort"
            yield Chunk(
                "",
                (),
                "abort" if is_aborted else "stop",
                cached_tokens=chunk.cached_tokens,
                times=chunk.times,
                vector=b"" if is_aborted else self._pooler.vector(request),
            )
        finally:
            self._close(run)

    async def _stream(self, request: EngineRequest, handle: KvHandle | None) -> AsyncGenerator[Chunk, None]:
        self._pooler.check(request)
        first = None
        if handle is not None:
            first, request = handle.first, left_for_decode(request, handle.first)
        run = EmulatedRun(request, self._answerer.answer(request), self._vocabulary, self._host.now_s)
        if handle is not None:
            run.kv_params = handle.params
            run.cached_tokens = int(handle.params.get("cached_tokens", 0))
        comes_from = tuple(handle.params.get("place", ())) if handle is not None else ()
        stats = self.stats()
        self._submit(run, pulls_kv=handle is not None, comes_from=comes_from)
        try:
            if first is not None and first.finish_reason is None:
                first = msgspec.structs.replace(first, text=run.text_left())
                if goes_ahead(first, len(run.prompt_token_ids), stats, self._info):
                    yield first
                    first = None
            while not run.is_read:
                num_tokens = self._host.num_tokens_out(run)
                if run.has_news(num_tokens):
                    yield with_first(first, run.read(num_tokens, self._answerer))
                    first = None
                else:
                    await self._wait(run)
        finally:
            self._close(run)

    def _submit(
        self, run: EmulatedRun, *, pulls_kv: bool = False, holds_kv: bool = False, comes_from: tuple[str, ...] = ()
    ) -> None:
        if self._is_asleep:
            raise EngineUnavailable(f"the engine sleeps, and takes no {run.request_id}")
        text = [*run.prompt_token_ids, *run.answer.token_ids]
        block_tokens, adapter = self._info.kv_block_tokens, run.adapter
        content = content_of(text, block_tokens, adapter, run.cache_salt) if self._settings.prefix_caching else ()
        sequence = Sequence(
            run.request_id,
            len(run.prompt_token_ids),
            len(run.answer.token_ids),
            priority=run.priority,
            pulls_kv=pulls_kv,
            holds_kv=holds_kv,
            content=content,
            content_unit_tokens=block_tokens,
            adapter=adapter,
            link_slowdown=slowdown_between(self._settings.place, comes_from, self._settings.link_slowdowns),
        )
        self._host.submit(run, sequence)
        self._kv_events.begin(sequence, text, run.cache_salt)

    def _close(self, run: EmulatedRun) -> None:
        self._host.close(run)
        self._kv_events.end(run.sequence)

    def _hand_over(self, run: EmulatedRun) -> KvHandle:
        run.is_handed_over = True
        num_tokens, cached_tokens = run.sequence.prompt_tokens, run.sequence.cached_tokens
        place = list(self._settings.place)
        sizes = {"num_tokens": num_tokens, "cached_tokens": cached_tokens}
        params = {**self._host.kv_params(run), **sizes, "place": place}
        return KvHandle(params, num_tokens, run.prefill_s, cached_tokens)

    async def _wait(self, run: EmulatedRun) -> None:
        """Until something may have happened to the request; raises what has befallen it."""
        if not run.is_over:
            self._readers[run] = asyncio.get_running_loop().create_future()
            try:
                await self._readers[run]
            finally:
                self._readers.pop(run, None)
        if run.error is not None:
            raise run.error

    def _wake_readers(self) -> None:
        for run, reader in self._readers.items():
            if not reader.done() and run.has_news(self._host.num_tokens_out(run)):
                reader.set_result(None)

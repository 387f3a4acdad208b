"""The step model in real time behind the engine contract: how a large engine behaves, on no hardware to speak of.

Nothing is computed but when things would happen. Tokens are not pushed: a reader that has nothing to read is woken
after each step, and one that comes late finds everything since its last visit in one chunk.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from engines.contract import Chunk, EngineInfo, EngineRequest, EngineStats, KvHandle
from engines.emulated.answers import Answerer
from engines.emulated.kv_leases import KvHolder, KvPull
from engines.emulated.paced_model import PacedModel
from engines.emulated.run import EmulatedRun
from engines.emulated.settings import EmulatedSettings
from engines.emulated.text import Vocabulary, content_of
from engines.emulated.tied_runs import TiedRuns
from engines.faults import FaultKind, check_fault
from engines.model.sequences import Sequence, SequenceStage
from engines.model.step_model import Happening, StepModel, StepOutput
from policies.errors import ConfigError, EngineAborted, EngineError, EngineUnavailable, KvTransferFailed
from policies.views import Role

LOGGER = logging.getLogger(__name__)
LONGEST_FAULT_S = 86_400


class EmulatedEngine:
    """One emulated engine. Make it with :meth:`start`."""

    def __init__(
        self, settings: EmulatedSettings, vocabulary: Vocabulary, now_s: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        self._info = settings.info()
        self._vocabulary = vocabulary
        self._answerer = Answerer(vocabulary, self._info.context_tokens, settings.mean_output_tokens, settings.seed)
        self._model = StepModel(settings.spec())
        self._loop = asyncio.get_running_loop()
        self._pace = PacedModel(self._model, settings.speed, self._take_in, self._wake_readers, now_s)
        self._runs: dict[str, EmulatedRun] = {}
        self._readers: dict[EmulatedRun, asyncio.Future[None]] = {}
        self._tied_runs = TiedRuns(self._model, self._pace, self._runs, self._leave)
        self._holder = KvHolder(settings.kv_lease_s)
        self._pulling: set[asyncio.Task[KvPull]] = set()
        self._dead = ""
        self._is_refusing = False
        self._is_failing = False
        self._fault_ends: dict[FaultKind, asyncio.TimerHandle] = {}
        self._prompt_tokens_total = 0
        self._kv_tokens_received_total = 0
        self._kv_transfer_failures_total = 0

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
        await engine._tied_runs.keeper.listen(settings.host)
        engine._info = msgspec.structs.replace(engine._info, claims_at=engine._tied_runs.keeper.address)
        if settings.role is Role.PREFILL:
            await engine._holder.listen(settings.host)
        return engine

    # -- the contract -------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._info

    def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        return self._stream(request, None)

    def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncIterator[Chunk]:
        return self._stream(request, handle)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        if self._settings.role is not Role.PREFILL:
            raise KvTransferFailed(f"the prefill of {request.request_id} would hold no KV blocks here")
        run = EmulatedRun(request, self._answerer.first_token(request), came_at_s=self._pace.now_s)
        self._submit(run, holds_kv=True)
        try:
            while not run.is_over:
                await self._wait(run)
            self.check_health()
            if run.finish_reason == "abort":
                raise EngineAborted(f"the prefill of {request.request_id} was aborted")
            return self._hold(run)
        finally:
            self._close(run)

    async def abort(self, request_id: str) -> None:
        run = self._runs.get(request_id)
        if run is None:
            return
        self._pace.catch_up()
        if not run.is_over:
            run.end("abort", self._num_tokens_out(run))
            self._leave(run)

    def stats(self) -> EngineStats:
        batch = self._model.batch
        return EngineStats(
            num_requests_unfinished=len(self._runs),
            num_requests_running=len(batch.running),
            num_requests_waiting=self._model.num_waiting,
            kv_cache_usage=batch.blocks.usage_fraction,
            num_steps=self._model.num_steps,
            prompt_tokens_total=self._prompt_tokens_total,
            output_tokens_total=batch.num_output_tokens,
            kv_tokens_received_total=self._kv_tokens_received_total,
            kv_bytes_received_total=self._kv_tokens_received_total * self._settings.profile.kv.bytes_per_token,
            kv_transfer_failures_total=self._kv_transfer_failures_total,
        )

    async def warm_up(self) -> None:
        """Takes the time that the start of the real engine would; there is nothing to warm."""
        await asyncio.sleep(self._settings.start_s / self._settings.speed)

    def check_health(self) -> None:
        if self._dead:
            raise EngineUnavailable(self._dead)

    async def shutdown(self) -> None:
        self._die("the engine was shut down")
        await self._holder.close()
        await self._tied_runs.keeper.close()
        if self._pulling:
            await asyncio.wait(self._pulling)

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
        if for_s is not None and not 0 < for_s <= LONGEST_FAULT_S:
            raise ConfigError("for_s", for_s, f"more than 0, at most {LONGEST_FAULT_S:,}")
        self.clear_fault(kind)
        LOGGER.warning("fault: %s, factor %s, for %s s", kind.value, factor, for_s)
        self._set_fault(kind, True, factor)
        if for_s is not None and not self._dead:
            self._fault_ends[kind] = self._loop.call_later(for_s, self.clear_fault, kind)

    def clear_fault(self, kind: FaultKind) -> None:
        """Switches a fault off; one that is not on, or for good, is left alone."""
        if timer := self._fault_ends.pop(kind, None):
            timer.cancel()
        self._set_fault(kind, False, 1.0)

    def _set_fault(self, kind: FaultKind, is_on: bool, factor: float) -> None:
        match kind:
            case FaultKind.SLOW:
                self._model.slow_down(factor, self._pace.catch_up())
            case FaultKind.STALL:
                (self._model.stall if is_on else self._model.resume)(self._pace.catch_up())
            case FaultKind.REFUSE:
                self._is_refusing = is_on
            case FaultKind.FAIL:
                self._is_failing = is_on
            case FaultKind.DROP_KV:
                self._holder.is_dropping = is_on
            case FaultKind.CRASH:
                if is_on:
                    self._die("the engine core crashed")
        self._pace.arm()

    def _die(self, why: str) -> None:
        """Everybody who reads gets an error; peers find their connections closed."""
        self._dead = self._dead or why
        self._pace.stop()
        for run in self._runs.values():
            run.fail(EngineUnavailable(self._dead))
            if run.pull is not None:
                run.pull.drop()
        self._runs.clear()
        self._tied_runs.stop()
        self._holder.stop()
        for timer in self._fault_ends.values():
            timer.cancel()
        self._fault_ends.clear()
        self._wake_readers()

    # -- a request ----------------------------------------------------------------------------------------------------

    async def _stream(self, request: EngineRequest, handle: KvHandle | None) -> AsyncGenerator[Chunk, None]:
        run = EmulatedRun(request, self._answerer.answer(request), self._vocabulary, self._pace.now_s)
        if handle is not None:
            run.cached_tokens = int(handle.params.get("cached_tokens", 0))
            run.pull = await self._pull(handle)
        self._submit(run)
        try:
            while not run.is_read:
                num_tokens = self._num_tokens_out(run)
                if run.has_news(num_tokens):
                    yield run.read(num_tokens, self._answerer)
                else:
                    await self._wait(run)
        finally:
            self._close(run)

    async def _pull(self, handle: KvHandle) -> KvPull:
        """Claims the handle's blocks; a claim whose asker has left meanwhile is made all the same, and given back."""
        self._check_accepts()
        task = self._loop.create_task(KvPull.make(handle.params))
        self._pulling.add(task)
        task.add_done_callback(self._pulling.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_give_back)
            raise
        except KvTransferFailed:
            self._kv_transfer_failures_total += 1
            raise

    def _submit(self, run: EmulatedRun, *, holds_kv: bool = False) -> None:
        """Hands the request to the model; a claim that it came with is dropped when the engine does not take it."""
        try:
            self._check_accepts()
            if run.request_id in self._runs:
                raise EngineError(f"a request {run.request_id} is open already")
        except EngineError:
            if run.pull is not None:
                run.pull.drop()
            raise
        run.sequence = Sequence(
            run.request_id,
            len(run.prompt_token_ids),
            len(run.answer.token_ids),
            priority=run.priority,
            pulls_kv=run.pull is not None,
            holds_kv=holds_kv,
            content=self._content(run),
            content_unit_tokens=self._info.kv_block_tokens,
        )
        if run.pull is not None:
            run.pull.watch(lambda: self._lose(run))
        self._tied_runs.share(run)
        self._runs[run.request_id] = run
        self._prompt_tokens_total += len(run.prompt_token_ids)
        self._model.submit(run.sequence, self._pace.catch_up())
        self._pace.arm()

    def _check_accepts(self) -> None:
        self.check_health()
        if self._is_refusing:
            raise EngineUnavailable("the engine takes no requests")
        if self._is_failing:
            raise EngineError("the engine fails every request")

    def _content(self, run: EmulatedRun) -> tuple[int, ...]:
        if not self._settings.prefix_caching:
            return ()
        return content_of([*run.prompt_token_ids, *run.answer.token_ids], self._info.kv_block_tokens)

    def _num_tokens_out(self, run: EmulatedRun) -> int:
        """Tokens that have left the engine; a sequence gets one token in each step that is still on its way out."""
        if run.is_over:
            return run.final_tokens
        if not run.has_started:
            return 0
        return self._model.batch.num_output_tokens_of(run.sequence) - self._pace.num_steps_leaving

    async def _wait(self, run: EmulatedRun) -> None:
        """Until something may have happened to the request; raises what has befallen it."""
        if not run.is_over:
            self._readers[run] = self._loop.create_future()
            try:
                await self._readers[run]
            finally:
                self._readers.pop(run, None)
        if run.error is not None:
            raise run.error

    def _wake_readers(self) -> None:
        for run, reader in self._readers.items():
            if not reader.done() and run.has_news(self._num_tokens_out(run)):
                reader.set_result(None)

    def _close(self, run: EmulatedRun) -> None:
        """Nobody reads any more: what the model still has of the request goes, except blocks held for a decode."""
        if self._dead or run.is_held:
            return
        self._pace.catch_up()
        if run.sequence.stage is not SequenceStage.GONE:
            self._leave(run)

    def _leave(self, run: EmulatedRun) -> None:
        """Takes a request out of the model; one whose KV is on its way stays until that has arrived."""
        self._model.abort(run.sequence, self._pace.catch_up())
        run.is_left = True
        if run.sequence.stage is not SequenceStage.PULLING:
            self._forget(run)
        self._pace.arm()
        self._wake_readers()

    def _forget(self, run: EmulatedRun) -> None:
        """Nothing of the request is left in the model, or will not be after this step."""
        if run.pull is not None:
            run.pull.pulled()
            run.pull = None
        if self._runs.get(run.request_id) is run:
            del self._runs[run.request_id]
            self._tied_runs.forget(run)

    # -- KV handoff ---------------------------------------------------------------------------------------------------

    def _hold(self, run: EmulatedRun) -> KvHandle:
        sequence = run.sequence
        where = self._holder.hold(run.request_id, lambda: self._release(sequence))
        run.is_held = True
        num_tokens = sequence.prompt_tokens
        params = {**where, "num_tokens": num_tokens, "cached_tokens": sequence.cached_tokens}
        return KvHandle(params, num_tokens, run.prefill_s, sequence.cached_tokens)

    def _release(self, sequence: Sequence) -> None:
        self._model.release_held(sequence, self._pace.catch_up())
        self._pace.arm()

    def _lose(self, run: EmulatedRun) -> None:
        """The prefill engine died before the blocks were here."""
        self._pace.catch_up()
        if run.pull is not None:
            run.pull.drop()
            run.pull = None
            self._kv_transfer_failures_total += 1
            run.fail(KvTransferFailed(f"the prefill engine of {run.request_id} died"))
            self._leave(run)

    # -- what the model tells -----------------------------------------------------------------------------------------

    def _take_in(self, output: StepOutput) -> None:
        run = self._runs.get(output.sequence.request_id)
        if run is None or run.sequence is not output.sequence:
            return
        match output.happening:
            case Happening.FIRST_TOKEN:
                run.has_started = True
                if not run.kv_transfer_s:
                    run.prefill_s = (output.at_s - run.came_at_s) / self._settings.speed
            case Happening.FINISHED:
                run.end(run.answer.finish_reason, len(run.answer.token_ids))
                self._forget(run)
            case Happening.KV_PULLED:
                run.kv_transfer_s = (output.at_s - run.came_at_s) / self._settings.speed
                self._pulled(run)
            case Happening.TURN:
                self._tied_runs.take_turn(run)

    def _pulled(self, run: EmulatedRun) -> None:
        if run.pull is not None:
            self._kv_tokens_received_total += run.sequence.prompt_tokens - run.sequence.cached_tokens
            run.pull.pulled()
            run.pull = None
        if run.is_left:
            self._forget(run)


def _give_back(pulling: "asyncio.Task[KvPull]") -> None:
    if not pulling.cancelled() and pulling.exception() is None:
        pulling.result().pulled()

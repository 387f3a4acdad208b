"""An engine without a model, for tests: tokens are arithmetic, a step is one turn of the event loop.

It keeps every rule of :mod:`engines.contract`; subclasses break one rule each.
"""

import asyncio
import hashlib
import json
import math
import random
import struct
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import msgspec

from engines import ChosenLogprob, Chunk, EngineInfo, EngineRequest, EngineStats, KvEvent, KvHandle, TokenLogprob
from engines.contract import Adapter, PoolingTask, PromptLogprobs
from engines.handoff import comes_from_prefill, handed_over, left_for_decode, with_first
from policies.errors import EngineError, EngineUnavailable, KvTransferFailed, RequestInvalid

CONTEXT_TOKENS = 2048
KV_CAPACITY_TOKENS = 5 * CONTEXT_TOKENS
VOCABULARY_TOKENS = 1000
FIRST_LETTER = 1000
"""From here on tokens are characters; only a structured output has some."""


def written(token_ids: Iterable[int]) -> str:
    """The text of tokens."""
    return "".join(f"<{token}>" if token < FIRST_LETTER else chr(token - FIRST_LETTER) for token in token_ids)


@dataclass(slots=True, kw_only=True)
class Run:
    """A request that the engine has open.

    Args:
        request: As it came.
        output: Tokens so far.
        unread: Those that no chunk has taken along yet.
        text: Of the answer so far and the tokens that were taken along.
        num_given: Characters of it that are out.
        finish_reason: Set when the last token is out.
        stop_reason: The token or the string that ended it.
        cached_tokens: Prompt tokens that came from elsewhere.
        news: Set when there is something to read.
    """

    request: EngineRequest
    output: list[int] = field(default_factory=list)
    unread: deque[int] = field(default_factory=deque)
    text: str = ""
    num_given: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedEngine:
    """Gives each request tokens that follow from its prompt, its adapter and its seed.

    Args:
        max_adapters: As many as it keeps.
        pooling_tasks: What it makes of prompts, if it gives no answers.
    """

    def __init__(self, max_adapters: int = 0, pooling_tasks: tuple[PoolingTask, ...] = ()) -> None:
        self.max_adapters = max_adapters
        self.pooling_tasks = pooling_tasks
        self.adapters: list[str] = []
        self.runs: dict[str, Run] = {}
        self.totals = EngineStats()
        self.held: dict[str, int] = {}
        self.released: list[KvHandle] = []
        self.is_asleep = False
        self._loop: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            context_tokens=CONTEXT_TOKENS,
            kv_capacity_tokens=KV_CAPACITY_TOKENS,
            kv_block_tokens=16,
            max_num_seqs=64,
            can_sleep=True,
            max_adapters=self.max_adapters,
            pooling_tasks=self.pooling_tasks,
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        self.check(request)
        async for chunk in self.follow(self.open(Run(request=request))):
            yield self.pooled(request, chunk) if request.pooling else chunk

    async def prefill(self, request: EngineRequest) -> KvHandle:
        self.check(request)
        handle = KvHandle({"from": request.request_id}, len(request.prompt_token_ids))
        if not self.draws_first(request):
            return handle
        one_token = msgspec.structs.replace(request.sampling, max_tokens=1)
        asked = msgspec.structs.replace(request, sampling=one_token)
        handle = msgspec.structs.replace(handle, prompt_logprobs=self.prompt_logprobs(request))
        (chunk,) = [chunk async for chunk in ScriptedEngine.generate(self, asked)]
        first = msgspec.structs.replace(chunk, prompt_logprobs=None)
        return msgspec.structs.replace(handle, first=handed_over(first, request, CONTEXT_TOKENS))

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        self.check(request)
        if "from" not in handle.params:
            raise KvTransferFailed("this handle is another engine's")
        first, request = handle.first, left_for_decode(request, handle.first)
        said = handle.prompt_logprobs
        if first is not None and first.finish_reason is None:
            yield msgspec.structs.replace(first, prompt_logprobs=said)
            first = said = None
        run = self.open(Run(request=request, cached_tokens=handle.num_tokens))
        self.add(kv_tokens_received_total=handle.num_tokens)
        async for chunk in self.follow(run):
            yield msgspec.structs.replace(with_first(first, chunk), prompt_logprobs=said)
            first = said = None

    async def release_kv(self, handle: KvHandle) -> None:
        self.released.append(handle)

    async def abort(self, request_id: str) -> None:
        if run := self.runs.get(request_id):
            self.finish(run, "abort")

    def take_kv_events(self) -> list[KvEvent]:
        return []

    def stats(self) -> EngineStats:
        held = sum(len(run.request.prompt_token_ids) + len(run.output) for run in self.runs.values())
        return msgspec.structs.replace(
            self.totals,
            num_requests_running=len(self.runs),
            num_requests_unfinished=sum(run.finish_reason is None for run in self.runs.values()),
            kv_cache_usage=(held + sum(self.held.values())) / KV_CAPACITY_TOKENS,
            adapters=tuple(self.adapters),
        )

    async def load_adapter(self, adapter: Adapter) -> None:
        self.use(adapter)

    async def unload_adapter(self, name: str) -> None:
        self.adapters = [each for each in self.adapters if each != name]

    async def warm_up(self) -> None:
        return None

    async def sleep(self) -> None:
        self.is_asleep = True

    async def wake(self) -> None:
        self.is_asleep = False

    def check_health(self) -> None:
        return None

    async def shutdown(self) -> None:
        self.runs.clear()

    # -- what subclasses break ----------------------------------------------------------------------------------------

    def check(self, request: EngineRequest) -> None:
        """Refuses what can't be run."""
        if self.is_asleep:
            raise EngineUnavailable("it sleeps")
        request.check()
        if request.pooling or self.pooling_tasks:
            self.check_pooled(request)
            return
        if len(request.prompt_token_ids) + request.sampling.max_tokens > self.info.context_tokens:
            raise RequestInvalid("the prompt is too long", "prompt")
        if request.adapter:
            self.use(request.adapter)
        if request.answered_chars > len(written(request.answered_token_ids)):
            raise RequestInvalid("the answer so far is not as long", "answered_chars")
        structured = request.sampling.structured_output
        if structured is not None and structured.kind != "choice":
            raise RequestInvalid("it can only choose", "structured_output")
        if structured is not None and not self.chosen(Run(request=request)).startswith(
            written(request.answered_token_ids)
        ):
            raise EngineError("the answer so far is none of the choices")

    def check_pooled(self, request: EngineRequest) -> None:
        """Refuses what is not to be pooled."""
        if request.pooling.task not in self.pooling_tasks:
            raise RequestInvalid("it is not there for that", "model")
        if not 0 < len(request.prompt_token_ids) <= self.info.context_tokens:
            raise RequestInvalid("the prompt is too long, or none", "prompt")

    def pooled(self, request: EngineRequest, chunk: Chunk) -> Chunk:
        """A vector in the place of the token that the steps have given."""
        if chunk.finish_reason == "abort":
            return Chunk("", (), "abort")
        return Chunk("", (), "stop", vector=self.vector(request))

    def vector(self, request: EngineRequest) -> bytes:
        """One that follows from the prompt."""
        rng = random.Random(str(request.prompt_token_ids))
        values = [rng.gauss(0.0, 1.0) for _ in range(8)]
        length = math.hypot(*values)
        return struct.pack("<8f", *(each / length for each in values))

    def use(self, adapter: Adapter) -> None:
        """An adapter is the last one used; it is loaded where it is not."""
        if not self.max_adapters:
            raise RequestInvalid("it takes no adapters", "model")
        self.add(adapter_loads_total=adapter.name not in self.adapters)
        others = [each for each in self.adapters if each != adapter.name]
        self.adapters = [adapter.name, *others][: self.max_adapters]

    def draws_first(self, request: EngineRequest) -> bool:
        """Whether a prefill draws the first token."""
        resumable = request.sampling.is_resumable
        return comes_from_prefill(len(request.prompt_token_ids), self.info.kv_block_tokens, is_resumable=resumable)

    def begin_text(self, run: Run) -> None:
        """What the text goes on with."""
        run.text = written(run.request.answered_token_ids)
        run.num_given = run.request.answered_chars

    def token(self, run: Run) -> int:
        """The next token."""
        sampling = run.request.sampling
        seed = sampling.seed if sampling.temperature else None
        place = run.request.answered_tokens + len(run.output)
        if sampling.structured_output is not None:
            return FIRST_LETTER + ord(self.chosen(run)[place])
        if sampling.allowed_token_ids is not None:
            return sampling.allowed_token_ids[place % len(sampling.allowed_token_ids)]
        key = f"{run.request.original_token_ids}{run.request.adapter.name}{place}{seed}"
        token = 5 + int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % (VOCABULARY_TOKENS - 5)
        return token if written([token]) not in sampling.bad_words else token - 1

    def chosen(self, run: Run) -> str:
        """The text that the answer has to be."""
        structured = run.request.sampling.structured_output
        return str(json.loads(structured.spec)[0]) if structured is not None else ""

    def step(self, run: Run) -> None:
        """Adds one token to a request, and the verdict after the last."""
        sampling = run.request.sampling
        token = self.token(run)
        run.output.append(token)
        run.unread.append(token)
        run.news.set()
        self.add(output_tokens_total=1)
        if token in sampling.stop_token_ids:
            run.stop_reason = token
            self.finish(run, "stop")
        elif stop := self.stop_string(run):
            run.stop_reason = stop
            self.finish(run, "stop")
        elif run.request.answered_tokens + len(run.output) == len(self.chosen(run)):
            self.finish(run, "stop")
        elif len(run.output) >= sampling.max_tokens:
            self.finish(run, "length")

    def stop_string(self, run: Run) -> str | None:
        """The stop string that the answer has, from its first token on."""
        text = written([*run.request.answered_token_ids, *run.output]) if run.request.sampling.stop else ""
        return next((stop for stop in run.request.sampling.stop if stop in text), None)

    def take(self, run: Run) -> tuple[int, ...]:
        """Tokens for the next chunk: all there are."""
        taken = tuple(run.unread)
        run.unread.clear()
        return taken

    def logprobs(self, token_ids: tuple[int, ...], number: int) -> tuple[ChosenLogprob, ...]:
        """Each token was the likeliest."""

        def entry(token_id: int) -> ChosenLogprob:
            top = tuple(TokenLogprob(token_id + rank, f"<{token_id + rank}>", -0.5 - rank) for rank in range(number))
            return ChosenLogprob(top[0], top)

        return tuple(entry(token_id) for token_id in token_ids)

    def prompt_logprobs(self, request: EngineRequest) -> PromptLogprobs | None:
        """Each token of the prompt was the likeliest, too."""
        number = request.sampling.prompt_logprobs
        if number is None:
            return None
        return (None, *self.logprobs(tuple(request.prompt_token_ids[1:]), number))

    def close(self, run: Run) -> None:
        """Forgets a request and frees its blocks."""
        self.runs.pop(run.request.request_id, None)

    # -- the machinery ------------------------------------------------------------------------------------------------

    def add(self, **numbers: int) -> None:
        """Adds to the totals."""
        now = {name: getattr(self.totals, name) + number for name, number in numbers.items()}
        self.totals = msgspec.structs.replace(self.totals, **now)

    def open(self, run: Run) -> Run:
        """Takes a request into the batch."""
        self.runs[run.request.request_id] = run
        self.begin_text(run)
        self.add(prompt_tokens_total=len(run.request.prompt_token_ids))
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run_steps())
        return run

    def finish(self, run: Run, reason: str) -> None:
        """The request gets no more tokens."""
        run.finish_reason = reason
        run.news.set()

    async def follow(self, run: Run) -> AsyncGenerator[Chunk, None]:
        """Reads a request to its end, or until its reader goes."""
        try:
            is_over = False
            while not is_over:
                await run.news.wait()
                run.news.clear()
                chunk = self._chunk(run)
                is_over = chunk.finish_reason is not None
                if run.unread:
                    run.news.set()
                yield chunk
        finally:
            self.close(run)

    def _chunk(self, run: Run) -> Chunk:
        taken = self.take(run)
        is_last = run.finish_reason is not None and not run.unread
        number = run.request.sampling.logprobs
        return Chunk(
            text=self._text(run, taken, is_last),
            token_ids=taken,
            finish_reason=run.finish_reason if is_last else None,
            stop_reason=run.stop_reason if is_last else None,
            cached_tokens=run.cached_tokens,
            logprobs=None if number is None else self.logprobs(taken, number),
            prompt_logprobs=self.prompt_logprobs(run.request)
            if len(taken) == len(run.output) - len(run.unread)
            else None,
        )

    def _text(self, run: Run, taken: tuple[int, ...], is_last: bool) -> str:
        """What may become a stop string is held back until the answer is over."""
        run.text += written(taken)
        end = len(run.text)
        stops = run.request.sampling.stop
        if is_last and isinstance(run.stop_reason, str):
            end = run.text.index(run.stop_reason)
            end += len(run.stop_reason) if run.request.sampling.include_stop_str_in_output else 0
        elif stops and not is_last:
            end -= max(map(len, stops)) - 1
        start, run.num_given = run.num_given, max(run.num_given, end)
        return run.text[start : run.num_given]

    async def _run_steps(self) -> None:
        while running := [run for run in self.runs.values() if run.finish_reason is None]:
            self.add(num_steps=1)
            for run in running:
                self.step(run)
            await asyncio.sleep(0)
